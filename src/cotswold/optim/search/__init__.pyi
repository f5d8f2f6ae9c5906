from .strong_wolfe import StrongWolfe as StrongWolfe
from .trial import Ask as Ask
from .trial import Line as Line
from .trial import Outcome as Outcome
from .trial import Search as Search
from .trial import Start as Start
from .trial import Trial as Trial

__all__ = ["Ask", "Line", "Outcome", "Search", "Start", "StrongWolfe", "Trial"]
