"""Strategies of other packages join the schema of recipes.

Knows: the entry points that name their `[training]` sections. Does not know: how a strategy trains, which
another entry point says (`cotswold.strategies`), since whoever reads a recipe needs no torch.
"""

from __future__ import annotations

from functools import cache, reduce
from importlib.metadata import entry_points
from operator import or_

from cotswold.errors import RecipeError
from cotswold.recipe.schema.recipe import Recipe
from cotswold.recipe.schema.training import STRATEGIES, SharedTraining, names_of

GROUP = "cotswold.training"


@cache
def join_strategies() -> None:
    """Add the sections of installed packages to the union of `[training]`, once a process.

    Raises RecipeError for one that is no section, or whose strategy another one is called.
    """
    for point in entry_points(group=GROUP):
        section = point.load()
        if not (isinstance(section, type) and issubclass(section, SharedTraining)):
            raise RecipeError(
                f"the entry point {point.name!r} of {GROUP} gives {section!r:.80}, no [training]"
            )
        if names_of(section) != (point.name,):
            raise RecipeError(f"the entry point {point.name!r} of {GROUP} gives strategy {names_of(section)}")
        if any(point.name in names_of(each) for each in STRATEGIES):
            raise RecipeError(f"the entry point {point.name!r} of {GROUP} takes the name of another strategy")
        STRATEGIES.append(section)
    Recipe.model_fields["training"].annotation = reduce(or_, STRATEGIES)
    Recipe.model_rebuild(force=True)
