from .pipeline import OWN as OWN
from .pipeline import STEPS as STEPS
from .pipeline import Augmentation as Augmentation
from .random import normal as normal
from .random import uniform as uniform

__all__ = ["OWN", "STEPS", "Augmentation", "normal", "uniform"]
