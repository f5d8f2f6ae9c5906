from .hosts import Hosts as Hosts
from .hosts import Rate as Rate
from .hosts import Traffic as Traffic
from .hosts import remove_leftovers as remove_leftovers
from .hosts import why_not as why_not

__all__ = [
    "Hosts",
    "Rate",
    "Traffic",
    "remove_leftovers",
    "why_not",
]
