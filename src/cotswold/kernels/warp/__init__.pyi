from .images import FAR as FAR
from .images import GOLDEN as GOLDEN
from .images import MIXERS as MIXERS
from .images import PADDING_MODES as PADDING_MODES
from .images import Field as Field
from .images import Images as Images
from .images import PaddingMode as PaddingMode
from .passes import run as run

__all__ = ["FAR", "GOLDEN", "MIXERS", "PADDING_MODES", "Field", "Images", "PaddingMode", "run"]
