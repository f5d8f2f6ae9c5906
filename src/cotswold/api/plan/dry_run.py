"""Plan of a run of strategy `batch` or `downpour`, or of synchronous replicas, by its recipe.

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
    """Return processes, ports, bytes, memory, time and cost of a recipe of strategy `batch` or `downpour`.

    For strategy `supervised` with several replicas: ranks, parts of a batch, bytes and memory.
    Without a recipe, the run in ``directory`` is planned. Costs are missing if the recipe has no price.
    Raises UserError for other strategies (use `cotswold info` and `simulate`).
    """
    from cotswold import recipe as recipes
    from cotswold.recipe.schema import BatchTraining, DownpourTraining, SupervisedTraining
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
    if not isinstance(training, BatchTraining | DownpourTraining) or found.network.module is not None:
        raise UserError(
            f"{found.name} has strategy {training.strategy}; dry runs support batch and "
            "downpour; use cotswold info and cotswold simulate for other strategies"
        )
    is_alone = isinstance(training, BatchTraining) and found.alone
    with compute_threads(threads if is_alone else 1, found):
        known = with_features(found) if found.data.store is None else _with_store_shape(found)
        if isinstance(training, DownpourTraining):
            return async_sgd.plan_row(known, training)
        return base.plan_row(known, training)


def _with_store_shape(recipe: Recipe) -> Recipe:
    from cotswold.training.data.stores import open_store, with_store_shape

    return with_store_shape(recipe, open_store(recipe, Path()))
