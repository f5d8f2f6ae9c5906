from .problem import finishes as finishes
from .run import activated as activated
from .run import adjoint as adjoint
from .run import outer as outer
from .run import product as product
from .run import step as step

__all__ = [
    "activated",
    "adjoint",
    "finishes",
    "outer",
    "product",
    "step",
]
