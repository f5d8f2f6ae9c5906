from .cg import BetaName as BetaName
from .cg import CGMethod as CGMethod
from .convergence import Convergence as Convergence
from .iteration import Iteration as Iteration
from .lbfgs import LBFGSMethod as LBFGSMethod
from .method import Method as Method
from .method import MethodState as MethodState
from .objective import Decayed as Decayed
from .objective import Evaluation as Evaluation
from .objective import Objective as Objective
from .schedule import Schedule as Schedule
from .schedule import rate_at as rate_at
from .search.approximate_wolfe import ApproximateWolfe as ApproximateWolfe
from .search.base import Search as Search
from .search.bunyip import BunyipSearch as BunyipSearch
from .search.hybrid import RoundedWolfe as RoundedWolfe
from .search.hybrid import default_search as default_search
from .search.strong_wolfe import StrongWolfe as StrongWolfe
from .server_rules import Adagrad as Adagrad
from .server_rules import AddUpdate as AddUpdate
from .server_rules import Momentum as Momentum
from .server_rules import Rule as Rule
from .server_rules import Sgd as Sgd
from .torch_optimizers import LBFGS as LBFGS
from .torch_optimizers import ConjugateGradient as ConjugateGradient
from .vectors.base import Combine as Combine
from .vectors.base import Command as Command
from .vectors.base import Dot as Dot
from .vectors.base import Drop as Drop
from .vectors.base import Multiply as Multiply
from .vectors.base import Vectors as Vectors
from .vectors.deterministic_blas import axpby as axpby
from .vectors.deterministic_blas import dot as dot
from .vectors.dtensor import DTensorVectors as DTensorVectors
from .vectors.local import FunctionObjective as FunctionObjective
from .vectors.local import TensorVectors as TensorVectors

__all__ = [
    "LBFGS",
    "Adagrad",
    "AddUpdate",
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
    "axpby",
    "default_search",
    "dot",
    "rate_at",
]
