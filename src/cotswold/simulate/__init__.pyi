from .estimates.batch import EvaluationPrediction as EvaluationPrediction
from .estimates.batch import predict_evaluation as predict_evaluation
from .estimates.choice import choose_grid as choose_grid
from .estimates.choice import fastest_grid as fastest_grid
from .estimates.choice import grids as grids
from .estimates.choice import predicted_grids as predicted_grids
from .estimates.prediction import Prediction as Prediction
from .estimates.prediction import predict as predict
from .hardware.cluster import Cluster as Cluster
from .hardware.reader import load_cluster as load_cluster
from .hardware.reader import parse_cluster as parse_cluster
from .hardware.reader import shipped_clusters as shipped_clusters
from .hardware.this_machine import this_machine as this_machine
from .workloads.batch_work import BatchWork as BatchWork
from .workloads.batch_work import batch_work as batch_work
from .workloads.layers import LayerWork as LayerWork
from .workloads.replicated import ReplicatedWork as ReplicatedWork
from .workloads.stacks import StackWork as StackWork
from .workloads.work import stages as stages
from .workloads.work import workload as workload

__all__ = [
    "BatchWork",
    "Cluster",
    "EvaluationPrediction",
    "LayerWork",
    "Prediction",
    "ReplicatedWork",
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
