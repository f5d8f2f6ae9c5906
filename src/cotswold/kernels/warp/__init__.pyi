from .passes import run as run
from .pictures import FAR as FAR
from .pictures import FILLS as FILLS
from .pictures import GOLDEN as GOLDEN
from .pictures import MIXERS as MIXERS
from .pictures import Field as Field
from .pictures import Fill as Fill
from .pictures import Pictures as Pictures

__all__ = ["FAR", "FILLS", "GOLDEN", "MIXERS", "Field", "Fill", "Pictures", "run"]
