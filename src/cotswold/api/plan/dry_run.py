"""Plan of a run, by its recipe.

Knows: which module plans a strategy. Does not know: how anything is counted or trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cotswold.api.plan import async_sgd, base, data_parallel
from cotswold.api.request import override_list, recipe_name
from cotswold.api.threads import compute_threads
from cotswold.errors import UserError

if TYPE_CHECKING:
    from cotswold.recipe import Recipe


def plan(
    recipe: str | Path | Recipe | None,
    *,
    directory: str | Path | None = None,
    overrides: Mapping[str, object] | Sequence[str] = (),
    threads: int | None = None,
) -> base.Row:
    """Return the plan of a run: processes, ports, bytes, memory, time and cost, depending on the strategy.

    For strategy `supervised` with several replicas: ranks, parts of a batch, bytes and memory. For `greedy`,
    `joint` and other `supervised` runs: ranks, steps, memory and the time of the updates.
    Without a recipe, the run in ``directory`` is planned. Costs are missing if the recipe has no price.
    Raises UserError for a strategy of another package, and for a module of a Python program.
    """
    from cotswold import recipe as recipes
    from cotswold.recipe.schema import (
        BatchTraining,
        DownpourTraining,
        GreedyTraining,
        JointTraining,
        SupervisedTraining,
    )
    from cotswold.training.data.stores import with_features

    if recipe is None:
        if directory is None:
            raise UserError("give a recipe, or a run's directory, to plan")
        recipe = Path(directory) / "recipe.toml"
    with recipe_name(recipe) as name:
        assert name is not None, "there is a recipe"
        found = recipes.load(name, override_list(overrides))
    training = found.training
    replicas = isinstance(training, SupervisedTraining) and found.mesh.replicas > 1
    if replicas and found.network.module is None and found.network.backbone is None:
        with compute_threads(1, found):
            return data_parallel.plan_row(
                with_features(found) if found.data.store is None else _with_store_shape(found)
            )
    if found.network.module is not None:
        raise UserError(
            f"{found.name} trains {found.network.module}, a module of a Python program; dry runs support the "
            "networks of recipes"
        )
    if isinstance(training, GreedyTraining | JointTraining | SupervisedTraining):
        return _local_plan(found, threads)
    if not isinstance(training, BatchTraining | DownpourTraining):
        raise UserError(
            f"{found.name} has strategy {training.strategy} of another package; dry runs support greedy, "
            "joint, supervised, batch and downpour"
        )
    is_alone = isinstance(training, BatchTraining) and found.alone
    with compute_threads(threads if is_alone else 1, found):
        known = with_features(found) if found.data.store is None else _with_store_shape(found)
        if isinstance(training, DownpourTraining):
            return async_sgd.plan_row(known, training)
        return base.plan_row(known, training)


def _local_plan(recipe: Recipe, threads: int | None) -> base.Row:
    """Return the plan of a run in this process or on a grid of ranks of this machine.

    Raises UserError if the source is missing, because its number of samples is needed.
    """
    from cotswold.api.info import info
    from cotswold.api.plan import local
    from cotswold.api.ranks import local_grid
    from cotswold.ui.display import LoggingDisplay

    known = info(recipe, threads=threads, progress=False)
    if (unknown := known.totals.get("not_known") or known.totals.get(recipe.data.type)) is not None:
        raise UserError(f"the steps of {recipe.name} cannot be counted: {unknown}")
    return local.plan_row(known, local_grid(recipe, LoggingDisplay().note))


def _with_store_shape(recipe: Recipe) -> Recipe:
    from cotswold.training.data.stores import open_store, with_store_shape

    return with_store_shape(recipe, open_store(recipe, Path()))
