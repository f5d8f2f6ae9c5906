from .passes import run as run
from .pictures import FAR as FAR
from .pictures import GOLDEN as GOLDEN
from .pictures import MIXERS as MIXERS
from .pictures import PADDING_MODES as PADDING_MODES
from .pictures import Field as Field
from .pictures import PaddingMode as PaddingMode
from .pictures import Pictures as Pictures

__all__ = ["FAR", "GOLDEN", "MIXERS", "PADDING_MODES", "Field", "PaddingMode", "Pictures", "run"]
