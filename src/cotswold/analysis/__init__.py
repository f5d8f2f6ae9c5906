"""Looking at what was learnt: selectivity, stimuli, extremes, features, plots, the report."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotswold.analysis.classification import Classification as Classification
    from cotswold.analysis.classification import classify as classify
    from cotswold.analysis.evaluation import Evaluation as Evaluation
    from cotswold.analysis.evaluation import ObjectSelectivity as ObjectSelectivity
    from cotswold.analysis.features import write_features as write_features
    from cotswold.analysis.figures import curves as curves
    from cotswold.analysis.figures import filters as filters
    from cotswold.analysis.kmeans import PASSES_MAX as PASSES_MAX
    from cotswold.analysis.kmeans import kmeans_network as kmeans_network
    from cotswold.analysis.layers import Layer as Layer
    from cotswold.analysis.layers import StackLayers as StackLayers
    from cotswold.analysis.layers import top_layers as top_layers
    from cotswold.analysis.objects import Baselines as Baselines
    from cotswold.analysis.objects import Control as Control
    from cotswold.analysis.objects import Examination as Examination
    from cotswold.analysis.objects import examine as examine
    from cotswold.analysis.report import LeftOut as LeftOut
    from cotswold.analysis.report import build_report as build_report
    from cotswold.analysis.selectivity import ClassWeights as ClassWeights
    from cotswold.analysis.stimuli import optimal_stimuli as optimal_stimuli
    from cotswold.analysis.testset import ObjectTestSet as ObjectTestSet
    from cotswold.analysis.verify import verify_results as verify_results

_HOME = {
    "ClassWeights": "selectivity",
    "Classification": "classification",
    "Baselines": "objects",
    "Control": "objects",
    "Evaluation": "evaluation",
    "Examination": "objects",
    "Layer": "layers",
    "LeftOut": "report",
    "ObjectSelectivity": "evaluation",
    "PASSES_MAX": "kmeans",
    "StackLayers": "layers",
    "ObjectTestSet": "testset",
    "build_report": "report",
    "classify": "classification",
    "curves": "figures",
    "examine": "objects",
    "filters": "figures",
    "kmeans_network": "kmeans",
    "optimal_stimuli": "stimuli",
    "top_layers": "layers",
    "verify_results": "verify",
    "write_features": "features",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"cotswold.analysis.{_HOME[name]}"), name)
    raise AttributeError(f"module 'cotswold.analysis' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
