from .problem import supports_epilogue as supports_epilogue
from .run import adjoint as adjoint
from .run import outer as outer
from .run import product as product
from .run import product_with_activation as product_with_activation
from .run import step as step

__all__ = [
    "adjoint",
    "outer",
    "product",
    "product_with_activation",
    "step",
    "supports_epilogue",
]
