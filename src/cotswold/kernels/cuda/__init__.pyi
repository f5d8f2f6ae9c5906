from .launch import available as available
from .products import adjoint as adjoint
from .products import outer as outer
from .products import product as product

__all__ = [
    "adjoint",
    "available",
    "outer",
    "product",
]
