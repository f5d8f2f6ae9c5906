from . import analysis as analysis
from . import bench as bench
from . import checkpoint as checkpoint
from . import cluster as cluster
from . import data as data
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
from . import recipe as recipe
from . import run as run
from . import server as server
from . import simulate as simulate
from . import testing as testing
from . import training as training
from .api.connecting import connect as connect
from .api.connecting_data import connect_data as connect_data
from .api.evaluate import evaluate as evaluate
from .api.evaluations import PredictedEvaluations as PredictedEvaluations
from .api.evaluations import predict_evaluations as predict_evaluations
from .api.features import Features as Features
from .api.features import features as features
from .api.features import write_features as write_features
from .api.info import Info as Info
from .api.info import info as info
from .api.predict import Predictions as Predictions
from .api.predict import predict as predict
from .api.prepare import prepare as prepare
from .api.report import report as report
from .api.run import Run as Run
from .api.serving import serve as serve
from .api.serving_data import serve_data as serve_data
from .api.simulate import PredictedUpdates as PredictedUpdates
from .api.simulate import predict_updates as predict_updates
from .api.train import train as train
from .api.verify import Verification as Verification
from .api.verify import verify as verify
from .api.why import Why as Why
from .api.why import why as why
from .errors import CotswoldError as CotswoldError
from .mesh import partition as partition
from .recipe import Recipe as Recipe
from .run import Stop as Stop

__version__: str

__all__ = [
    "CotswoldError",
    "Features",
    "Info",
    "PredictedEvaluations",
    "PredictedUpdates",
    "Predictions",
    "Recipe",
    "Run",
    "Stop",
    "Verification",
    "Why",
    "__version__",
    "analysis",
    "bench",
    "checkpoint",
    "cluster",
    "connect",
    "connect_data",
    "data",
    "errors",
    "evaluate",
    "features",
    "files",
    "geometry",
    "host",
    "info",
    "kernels",
    "launch",
    "mesh",
    "nn",
    "ops",
    "optim",
    "partition",
    "predict",
    "predict_evaluations",
    "predict_updates",
    "prepare",
    "recipe",
    "report",
    "run",
    "serve",
    "serve_data",
    "server",
    "simulate",
    "testing",
    "train",
    "training",
    "verify",
    "why",
    "write_features",
]
