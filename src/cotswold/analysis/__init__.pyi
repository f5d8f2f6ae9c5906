from .classification import Classification as Classification
from .classification import classify as classify
from .evaluation import Evaluation as Evaluation
from .evaluation import ObjectSelectivity as ObjectSelectivity
from .features import write_features as write_features
from .figures import curves as curves
from .figures import filters as filters
from .kmeans import PASSES_MAX as PASSES_MAX
from .kmeans import kmeans_network as kmeans_network
from .layers import Layer as Layer
from .layers import StackLayers as StackLayers
from .layers import top_layers as top_layers
from .object_selectivity import Baselines as Baselines
from .object_selectivity import Control as Control
from .object_selectivity import Examination as Examination
from .object_selectivity import examine as examine
from .regression import Regression as Regression
from .regression import regress as regress
from .report import LeftOut as LeftOut
from .report import build_report as build_report
from .selectivity import ClassWeights as ClassWeights
from .stimuli import optimal_stimuli as optimal_stimuli
from .testset import ObjectTestSet as ObjectTestSet
from .variants import sheet_of_variants as sheet_of_variants
from .verify import verify_results as verify_results

__all__ = [
    "PASSES_MAX",
    "Baselines",
    "ClassWeights",
    "Classification",
    "Control",
    "Evaluation",
    "Examination",
    "Layer",
    "LeftOut",
    "ObjectSelectivity",
    "ObjectTestSet",
    "Regression",
    "StackLayers",
    "build_report",
    "classify",
    "curves",
    "examine",
    "filters",
    "kmeans_network",
    "optimal_stimuli",
    "regress",
    "sheet_of_variants",
    "top_layers",
    "verify_results",
    "write_features",
]
