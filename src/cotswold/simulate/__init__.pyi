from .batch import EvaluationPrediction as EvaluationPrediction
from .batch import predict_evaluation as predict_evaluation
from .batch_work import BatchWork as BatchWork
from .batch_work import batch_work as batch_work
from .choice import choose_grid as choose_grid
from .choice import fastest_grid as fastest_grid
from .choice import grids as grids
from .choice import predicted_grids as predicted_grids
from .cluster import Cluster as Cluster
from .here import this_machine as this_machine
from .layers import LayerWork as LayerWork
from .prediction import Prediction as Prediction
from .prediction import predict as predict
from .reader import load_cluster as load_cluster
from .reader import parse_cluster as parse_cluster
from .reader import shipped_clusters as shipped_clusters
from .stacks import StackWork as StackWork
from .work import stages as stages
from .work import workload as workload

__all__ = [
    "BatchWork",
    "Cluster",
    "EvaluationPrediction",
    "LayerWork",
    "Prediction",
    "StackWork",
    "batch_work",
    "choose_grid",
    "fastest_grid",
    "grids",
    "load_cluster",
    "parse_cluster",
    "predict",
    "predict_evaluation",
    "predicted_grids",
    "shipped_clusters",
    "stages",
    "this_machine",
    "workload",
]
