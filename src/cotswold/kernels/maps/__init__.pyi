from .normalisation import Bands as Bands
from .normalisation import Normalisation as Normalisation
from .pooling import pool as pool
from .pooling import pool_gradient as pool_gradient
from .tasks import Workers as Workers

__all__ = [
    "Bands",
    "Normalisation",
    "Workers",
    "pool",
    "pool_gradient",
]
