"""What the fields of all tables are made of: their base class, and numbers and texts with bounds.

Knows: types, limits of single fields. Does not know: which tables there are.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from cotswold.errors import RecipeError
from cotswold.recipe.limits import at_most, characters, items

Pixels = Annotated[int, Field(gt=0), at_most(1 << 16)]
Pair = Annotated[
    Pixels | tuple[Pixels, Pixels],
    BeforeValidator(
        lambda value: tuple(value) if isinstance(value, list) else value
    ),  # TOML knows lists only
]
Padding = Annotated[int, Field(ge=0), at_most(1 << 16)] | Literal["same"]
Channels = Annotated[int, Field(gt=0), at_most(1 << 30)]
Features = Annotated[int, Field(gt=0), at_most(1 << 40)]
Samples = Annotated[int, Field(gt=0), at_most(1 << 40)]
Times = Annotated[int, Field(gt=0), at_most(10**6)]
Passes = Annotated[
    int,
    BeforeValidator(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value),
    Field(gt=0),
    at_most(10**6),
]
"""Whole epochs: 10.0 is 10, since other strategies take parts of one."""
Seed = Annotated[int, Field(ge=0), at_most((1 << 63) - 1)]
Threads = Annotated[int, Field(gt=0), at_most(4096)]
Positive = Annotated[float, Field(gt=0), at_most(1e30)]
NotNegative = Annotated[float, Field(ge=0), at_most(1e30)]
Span = Annotated[float, Field(gt=0), at_most(1e6)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Text = Annotated[str, characters(4096)]
Texts = Annotated[list[Text], items(10_000)]


def pair(value: int | tuple[int, int]) -> tuple[int, int]:
    """One number for both axes, or one each (y, x)."""
    return (value, value) if isinstance(value, int) else value


class Section(BaseModel):
    """A table of a recipe: strict types, no unknown keys."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    def __setattr__(self, name: str, value: object) -> None:
        """Raise RecipeError: what has been checked stays as it is."""
        raise RecipeError(
            f"{name} cannot be set, a {type(self).__name__} is frozen; give overrides= where it is used, or "
            f"make another one by model_copy(update={{{name!r}: ...}})"
        )
