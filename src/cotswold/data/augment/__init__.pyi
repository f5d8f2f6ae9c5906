from .keyed_random import normal as normal
from .keyed_random import uniform as uniform
from .pipeline import OWN as OWN
from .pipeline import STEPS as STEPS
from .pipeline import Augmentation as Augmentation

__all__ = ["OWN", "STEPS", "Augmentation", "normal", "uniform"]
