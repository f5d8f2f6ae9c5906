from .problem import supports_epilogue as supports_epilogue
from .run import activated as activated
from .run import adjoint as adjoint
from .run import outer as outer
from .run import product as product
from .run import step as step

__all__ = [
    "activated",
    "adjoint",
    "outer",
    "product",
    "step",
    "supports_epilogue",
]
