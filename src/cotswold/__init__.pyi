from . import analysis as analysis
from . import batch as batch
from . import bench as bench
from . import callbacks as callbacks
from . import checkpoint as checkpoint
from . import data as data
from . import dataservice as dataservice
from . import errors as errors
from . import files as files
from . import geometry as geometry
from . import host as host
from . import kernels as kernels
from . import launch as launch
from . import mesh as mesh
from . import nn as nn
from . import ops as ops
from . import optim as optim
from . import paramserver as paramserver
from . import processes as processes
from . import recipe as recipe
from . import replicas as replicas
from . import replication as replication
from . import run as run
from . import shards as shards
from . import simulate as simulate
from . import sklearn as sklearn
from . import testing as testing
from . import training as training
from . import transport as transport
from . import ui as ui
from . import wire as wire
from .api.evaluations import PredictedEvaluations as PredictedEvaluations
from .api.evaluations import predict_evaluations as predict_evaluations
from .api.inference.evaluate import evaluate as evaluate
from .api.inference.evaluate import selectivity as selectivity
from .api.inference.features import Features as Features
from .api.inference.features import features as features
from .api.inference.features import write_features as write_features
from .api.inference.predict import Predictions as Predictions
from .api.inference.predict import predict as predict
from .api.info import Info as Info
from .api.info import info as info
from .api.prepare import prepare as prepare
from .api.run import Run as Run
from .api.run import report as report
from .api.servers.data_client import connect_data as connect_data
from .api.servers.data_server import serve_data as serve_data
from .api.servers.parameter_client import connect as connect
from .api.servers.parameter_server import serve as serve
from .api.simulate import PredictedUpdates as PredictedUpdates
from .api.simulate import predict_updates as predict_updates
from .api.status import Why as Why
from .api.status import why as why
from .api.train import train as train
from .api.train import train_recipe as train_recipe
from .api.verify import Verification as Verification
from .api.verify import verify as verify
from .errors import CotswoldError as CotswoldError
from .host.memory import keep_freed_memory as keep_freed_memory
from .mesh import partition as partition
from .recipe import Recipe as Recipe
from .recipe.strategies import Downpour as Downpour
from .recipe.strategies import FullBatch as FullBatch
from .recipe.strategies import Supervised as Supervised
from .run import Stop as Stop
from .training.per_epoch import PerEpoch as PerEpoch

__version__: str

__all__ = [
    "CotswoldError",
    "Downpour",
    "Features",
    "FullBatch",
    "Info",
    "PerEpoch",
    "PredictedEvaluations",
    "PredictedUpdates",
    "Predictions",
    "Recipe",
    "Run",
    "Stop",
    "Supervised",
    "Verification",
    "Why",
    "__version__",
    "analysis",
    "batch",
    "bench",
    "callbacks",
    "checkpoint",
    "connect",
    "connect_data",
    "data",
    "dataservice",
    "errors",
    "evaluate",
    "features",
    "files",
    "geometry",
    "host",
    "info",
    "keep_freed_memory",
    "kernels",
    "launch",
    "mesh",
    "nn",
    "ops",
    "optim",
    "paramserver",
    "partition",
    "predict",
    "predict_evaluations",
    "predict_updates",
    "prepare",
    "processes",
    "recipe",
    "replicas",
    "replication",
    "report",
    "run",
    "selectivity",
    "serve",
    "serve_data",
    "shards",
    "simulate",
    "sklearn",
    "testing",
    "train",
    "train_recipe",
    "training",
    "transport",
    "ui",
    "verify",
    "why",
    "wire",
    "write_features",
]
