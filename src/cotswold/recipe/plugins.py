"""Strategies of other packages in the schema of recipes.

Knows: the entry points of their `[training]` sections. Does not know: how a strategy trains; another entry
point states that (`cotswold.strategies`), so that reading a recipe does not need torch.

A broken package only removes its own strategy. Its error appears when a recipe names that strategy.
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
    """Add the sections of installed packages to the union of `[training]`, once per process.

    Returns an error message for each strategy that cannot be added: its package fails, provides no section,
    or uses the name of another strategy.
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
    except Exception as error:  # any exception is the package's fault
        raise RecipeError(
            f"{where}, {point.value}, cannot be loaded ({type(error).__name__}: {error}); fix or remove "
            "that package"
        ) from error
    if not (isinstance(section, type) and issubclass(section, SharedTraining)):
        raise RecipeError(f"{where} provides {section!r:.80}, not a [training] section")
    if names_of(section) != (point.name,):
        raise RecipeError(f"{where} provides a section for strategy {names_of(section)}")
    if any(point.name in names_of(each) for each in STRATEGIES):
        raise RecipeError(f"{where} uses the name of another strategy")
    return section
