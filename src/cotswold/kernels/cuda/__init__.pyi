from .launch import available as available
from .products import adjoint as adjoint
from .products import outer as outer
from .products import product as product
from .updates import update as update
from .updates import update_constants as update_constants

__all__ = [
    "adjoint",
    "available",
    "outer",
    "product",
    "update",
    "update_constants",
]
