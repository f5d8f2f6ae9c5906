from .dropout import drop as drop
from .max_pooling import max_pool as max_pool
from .max_pooling import max_pool_gradient as max_pool_gradient
from .normalisation import Bands as Bands
from .normalisation import Normalisation as Normalisation
from .pooling import pool as pool
from .pooling import pool_gradient as pool_gradient
from .tasks import Workers as Workers

__all__ = [
    "Bands",
    "Normalisation",
    "Workers",
    "drop",
    "max_pool",
    "max_pool_gradient",
    "pool",
    "pool_gradient",
]
