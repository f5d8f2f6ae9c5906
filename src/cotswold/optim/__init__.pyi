from .blocks import combine as combine
from .blocks import dot as dot
from .cg import CGMethod as CGMethod
from .convergence import Convergence as Convergence
from .decay import Decayed as Decayed
from .directions import BetaName as BetaName
from .dtensors import DTensorVectors as DTensorVectors
from .iteration import Iteration as Iteration
from .iteration import MethodState as MethodState
from .lbfgs import LBFGSMethod as LBFGSMethod
from .method import Method as Method
from .objective import Evaluation as Evaluation
from .objective import Objective as Objective
from .schedule import Schedule as Schedule
from .schedule import rate_at as rate_at
from .search.approximate_wolfe import ApproximateWolfe as ApproximateWolfe
from .search.bunyip import BunyipSearch as BunyipSearch
from .search.rounded import RoundedWolfe as RoundedWolfe
from .search.rounded import suited as suited
from .search.strong_wolfe import StrongWolfe as StrongWolfe
from .search.trial import Search as Search
from .tensors import FunctionObjective as FunctionObjective
from .tensors import TensorVectors as TensorVectors
from .torch_optimizers import LBFGS as LBFGS
from .torch_optimizers import ConjugateGradient as ConjugateGradient
from .updates import Adagrad as Adagrad
from .updates import Deltas as Deltas
from .updates import Momentum as Momentum
from .updates import Rule as Rule
from .updates import Sgd as Sgd
from .vectors import Combine as Combine
from .vectors import Command as Command
from .vectors import Dot as Dot
from .vectors import Drop as Drop
from .vectors import Multiply as Multiply
from .vectors import Vectors as Vectors

__all__ = [
    "LBFGS",
    "Adagrad",
    "ApproximateWolfe",
    "BetaName",
    "BunyipSearch",
    "CGMethod",
    "Combine",
    "Command",
    "ConjugateGradient",
    "Convergence",
    "DTensorVectors",
    "Decayed",
    "Deltas",
    "Dot",
    "Drop",
    "Evaluation",
    "FunctionObjective",
    "Iteration",
    "LBFGSMethod",
    "Method",
    "MethodState",
    "Momentum",
    "Multiply",
    "Objective",
    "RoundedWolfe",
    "Rule",
    "Schedule",
    "Search",
    "Sgd",
    "StrongWolfe",
    "TensorVectors",
    "Vectors",
    "combine",
    "dot",
    "rate_at",
    "suited",
]
