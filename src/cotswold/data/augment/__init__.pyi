from .augmentation import STEPS as STEPS
from .augmentation import Augmentation as Augmentation
from .draws import normal as normal
from .draws import uniform as uniform

__all__ = ["STEPS", "Augmentation", "normal", "uniform"]
