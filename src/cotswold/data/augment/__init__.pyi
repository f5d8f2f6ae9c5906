from .keyed_random import normal as normal
from .keyed_random import uniform as uniform
from .pipeline import CUSTOM as CUSTOM
from .pipeline import STEPS as STEPS
from .pipeline import Augmentation as Augmentation

__all__ = ["CUSTOM", "STEPS", "Augmentation", "normal", "uniform"]
