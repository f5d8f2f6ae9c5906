"""Building blocks of all tables: the base class, and numbers and texts with bounds.

Knows: types, limits of single fields. Does not know: which tables exist.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from cotswold.errors import RecipeError
from cotswold.recipe.bounds import characters, hidden_maximum, items

Pixels = Annotated[int, Field(gt=0), hidden_maximum(1 << 16)]
Pair = Annotated[
    Pixels | tuple[Pixels, Pixels],
    BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value),  # TOML only has lists
]
Padding = Annotated[int, Field(ge=0), hidden_maximum(1 << 16)] | Literal["same"]
Channels = Annotated[int, Field(gt=0), hidden_maximum(1 << 30)]
Features = Annotated[int, Field(gt=0), hidden_maximum(1 << 40)]
Samples = Annotated[int, Field(gt=0), hidden_maximum(1 << 40)]
Times = Annotated[int, Field(gt=0), hidden_maximum(10**6)]
Passes = Annotated[
    int,
    BeforeValidator(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value),
    Field(gt=0),
    hidden_maximum(10**6),
]
"""Whole epochs; 10.0 is accepted as 10, because other strategies take fractions of epochs."""
Seed = Annotated[int, Field(ge=0), hidden_maximum((1 << 63) - 1)]
Threads = Annotated[int, Field(gt=0), hidden_maximum(4096)]
Positive = Annotated[float, Field(gt=0), hidden_maximum(1e30)]
NotNegative = Annotated[float, Field(ge=0), hidden_maximum(1e30)]
Span = Annotated[float, Field(gt=0), hidden_maximum(1e6)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Text = Annotated[str, characters(4096)]
Texts = Annotated[list[Text], items(10_000)]

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([A-Za-z]*)")


def byte_count(text: str) -> int:
    """Return the number of bytes that a text states; raises ValueError if it is not a size.

    >>> byte_count("1.5 GB"), byte_count("2 MiB")
    (1500000000, 2097152)
    """
    found = _SIZE.fullmatch(text.strip())
    unit = None if found is None else _UNITS.get(found[2].upper())
    if found is None or unit is None:
        raise ValueError(f"{text!r:.40} is not a size; write a number and its unit, such as 512 MB or 4 GB")
    return int(float(found[1]) * unit)


def _is_size(text: str) -> str:
    byte_count(text)
    return text


ByteSize = Annotated[Text, AfterValidator(_is_size)]
"""Number of bytes with its unit, such as 512 MB."""


def pair(value: int | tuple[int, int]) -> tuple[int, int]:
    """Return (y, x): one number counts for both axes."""
    return (value, value) if isinstance(value, int) else value


class Section(BaseModel):
    """A table of a recipe: strict types, no unknown keys, frozen."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    def __setattr__(self, name: str, value: object) -> None:
        """Raise RecipeError: a validated table cannot change."""
        raise RecipeError(
            f"cannot set {name}: a {type(self).__name__} is frozen; pass overrides= to the function that "
            f"takes the recipe, or make a copy with model_copy(update={{{name!r}: ...}})"
        )
