from .approximate_wolfe import ApproximateWolfe as ApproximateWolfe
from .bunyip import BunyipSearch as BunyipSearch
from .rounded import RoundedWolfe as RoundedWolfe
from .rounded import suited as suited
from .strong_wolfe import StrongWolfe as StrongWolfe
from .trial import Ask as Ask
from .trial import Line as Line
from .trial import Outcome as Outcome
from .trial import Search as Search
from .trial import Start as Start
from .trial import Trial as Trial

__all__ = [
    "ApproximateWolfe",
    "Ask",
    "BunyipSearch",
    "Line",
    "Outcome",
    "RoundedWolfe",
    "Search",
    "Start",
    "StrongWolfe",
    "Trial",
    "suited",
]
