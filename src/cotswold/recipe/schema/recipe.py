"""A whole recipe: all tables, validated alone and together.

Knows: the order of validation. Does not know: files, tensors, strategies. The string below a field is its
documentation; ``cotswold recipe explain`` prints it.
"""

from __future__ import annotations

from typing import Self

from pydantic import ValidationError, model_validator

from cotswold.errors import RecipeError
from cotswold.recipe.schema.rules import check
from cotswold.recipe.schema.tables import Tables
from cotswold.recipe.schema.training import OfStrategy, strategy_of


class Recipe(Tables):
    """A whole recipe: data, network, objective, training, and where to run it.

    Each attribute is a table of the TOML file. `load` and `parse` read recipes; `cotswold recipe explain`
    documents every field.

    Raises:
        RecipeError: if a value has the wrong type or contradicts another; the message names the field.
    """

    def __init__(self, **values: object) -> None:
        """Validate the tables; raises RecipeError with the same messages as for a file."""
        try:
            super().__init__(**values)  # type: ignore[arg-type]  # pydantic validates them
        except ValidationError as error:
            from cotswold.recipe.error_messages import describe_error

            raise RecipeError(f"Recipe(){describe_error(error, '', (), Recipe)}") from error

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # files are validated without it

    @model_validator(mode="before")
    @classmethod
    def _choose_objective(cls, values: object) -> object:
        """Choose the class of `[objective]`, which depends on the strategy in `[training]`."""
        if not isinstance(values, dict):
            return values
        given, strategy = values.get("objective", {}), strategy_of(values.get("training"))
        if strategy is None:  # the error is in [training], whatever [objective] contains
            return {name: value for name, value in values.items() if name != "objective"}
        return (
            {**values, "objective": OfStrategy(given, strategy.objective)} if type(given) is dict else values
        )

    @model_validator(mode="after")
    def _check_tables(self) -> Self:
        check(self)
        return self
