from .annotate import commented as commented
from .migration import FORMAT as FORMAT
from .migration import format_of as format_of
from .reference import explain as explain
from .schema import Recipe as Recipe
from .toml import dump as dump
from .toml import from_values as from_values
from .toml import load as load
from .toml import parse as parse
from .toml import shipped_names as shipped_names
from .variables import expand as expand

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
