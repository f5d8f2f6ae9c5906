from .augmentation import OWN as OWN
from .augmentation import STEPS as STEPS
from .augmentation import Augmentation as Augmentation
from .draws import normal as normal
from .draws import uniform as uniform

__all__ = ["OWN", "STEPS", "Augmentation", "normal", "uniform"]
