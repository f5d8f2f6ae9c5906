"""Strategies of other packages join the schema of recipes.

Knows: the entry points that name their `[training]` sections. Does not know: how a strategy trains, which
another entry point says (`cotswold.strategies`), since whoever reads a recipe needs no torch.

A package that is broken takes its own strategy away and nobody else's: the sentence about it is told to
whoever names that strategy.
"""

from __future__ import annotations

from functools import cache, reduce
from importlib.metadata import EntryPoint, entry_points
from operator import or_

from cotswold.errors import RecipeError
from cotswold.recipe.schema.recipe import Recipe
from cotswold.recipe.schema.training import STRATEGIES, SharedTraining, names_of

GROUP = "cotswold.training"


@cache
def join_strategies() -> dict[str, str]:
    """Add the sections of installed packages to the union of `[training]`, once a process.

    Returns a sentence for each strategy that cannot join: its package fails, gives no section, or takes the
    name of another strategy.
    """
    refused: dict[str, str] = {}
    for point in entry_points(group=GROUP):
        try:
            STRATEGIES.append(_section(point))
        except RecipeError as error:
            refused.setdefault(point.name, str(error))
    Recipe.model_fields["training"].annotation = reduce(or_, STRATEGIES)
    Recipe.model_rebuild(force=True)
    return refused


def _section(point: EntryPoint) -> type[SharedTraining]:
    where = f"the entry point {point.name!r} of {GROUP}"
    try:
        section = point.load()
    except Exception as error:  # whatever it is, it is the package's
        raise RecipeError(
            f"{where}, {point.value}, cannot be loaded ({type(error).__name__}: {error}); mend or remove "
            "that package"
        ) from error
    if not (isinstance(section, type) and issubclass(section, SharedTraining)):
        raise RecipeError(f"{where} gives {section!r:.80}, no [training]")
    if names_of(section) != (point.name,):
        raise RecipeError(f"{where} gives strategy {names_of(section)}")
    if any(point.name in names_of(each) for each in STRATEGIES):
        raise RecipeError(f"{where} takes the name of another strategy")
    return section
