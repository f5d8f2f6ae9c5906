from .approximate_wolfe import ApproximateWolfe as ApproximateWolfe
from .base import Line as Line
from .base import Outcome as Outcome
from .base import Search as Search
from .base import Start as Start
from .base import Trial as Trial
from .base import TrialRequest as TrialRequest
from .bunyip import BunyipSearch as BunyipSearch
from .hybrid import RoundedWolfe as RoundedWolfe
from .hybrid import default_search as default_search
from .strong_wolfe import StrongWolfe as StrongWolfe

__all__ = [
    "ApproximateWolfe",
    "BunyipSearch",
    "Line",
    "Outcome",
    "RoundedWolfe",
    "Search",
    "Start",
    "StrongWolfe",
    "Trial",
    "TrialRequest",
    "default_search",
]
