from .augmentation_sheet import sheet_of_variants as sheet_of_variants
from .classification import Classification as Classification
from .classification import classify as classify
from .features import write_features as write_features
from .figures import curves as curves
from .figures import filters as filters
from .layers import Layer as Layer
from .layers import StackLayers as StackLayers
from .layers import top_layers as top_layers
from .regression import Regression as Regression
from .regression import regress as regress
from .report import SkippedSamples as SkippedSamples
from .report import build_report as build_report
from .selectivity.few_label_results import FewLabels as FewLabels
from .selectivity.few_labels import FewLabelSettings as FewLabelSettings
from .selectivity.few_labels import few_labels as few_labels
from .selectivity.kmeans_baseline import PASSES_MAX as PASSES_MAX
from .selectivity.kmeans_baseline import kmeans_network as kmeans_network
from .selectivity.objects import Baselines as Baselines
from .selectivity.objects import Control as Control
from .selectivity.objects import SelectivitySettings as SelectivitySettings
from .selectivity.objects import score_object as score_object
from .selectivity.optimal_stimuli import optimal_stimuli as optimal_stimuli
from .selectivity.results import Evaluation as Evaluation
from .selectivity.results import ObjectSelectivity as ObjectSelectivity
from .selectivity.scores import ClassWeights as ClassWeights
from .selectivity.testset import ObjectTestSet as ObjectTestSet
from .verify import verify_results as verify_results

__all__ = [
    "PASSES_MAX",
    "Baselines",
    "ClassWeights",
    "Classification",
    "Control",
    "Evaluation",
    "FewLabelSettings",
    "FewLabels",
    "Layer",
    "ObjectSelectivity",
    "ObjectTestSet",
    "Regression",
    "SelectivitySettings",
    "SkippedSamples",
    "StackLayers",
    "build_report",
    "classify",
    "curves",
    "few_labels",
    "filters",
    "kmeans_network",
    "optimal_stimuli",
    "regress",
    "score_object",
    "sheet_of_variants",
    "top_layers",
    "verify_results",
    "write_features",
]
