from .images import GOLDEN as GOLDEN
from .images import HASH_MULTIPLIERS as HASH_MULTIPLIERS
from .images import MAX_DISTANCE as MAX_DISTANCE
from .images import PADDING_MODES as PADDING_MODES
from .images import Field as Field
from .images import Images as Images
from .images import PaddingMode as PaddingMode
from .images import hash_words as hash_words
from .passes import run as run

__all__ = [
    "GOLDEN",
    "HASH_MULTIPLIERS",
    "MAX_DISTANCE",
    "PADDING_MODES",
    "Field",
    "Images",
    "PaddingMode",
    "hash_words",
    "run",
]
