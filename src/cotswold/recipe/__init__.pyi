from .annotate import commented as commented
from .migration import FORMAT as FORMAT
from .migration import format_of as format_of
from .reader import from_values as from_values
from .reader import load as load
from .reader import parse as parse
from .reader import shipped_names as shipped_names
from .reference import explain as explain
from .schema import Recipe as Recipe
from .variables import expand as expand
from .writer import dump as dump

__all__ = [
    "FORMAT",
    "Recipe",
    "commented",
    "dump",
    "expand",
    "explain",
    "format_of",
    "from_values",
    "load",
    "parse",
    "shipped_names",
]
