"""The time, bytes and cost of a recipe's updates on a cluster that is not at hand.

Knows: how a cluster, a recipe and grids come together. Does not know: how anything is predicted or shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cotswold.api.request import override_list, recipe_name
from cotswold.errors import UserError
from cotswold.ui.display import display_for

if TYPE_CHECKING:
    from cotswold.geometry import Grid
    from cotswold.recipe import Recipe
    from cotswold.simulate import Cluster, LayerWork, Prediction, StackWork

RANKS_A_DEVICE = 4


@dataclass(frozen=True)
class PredictedUpdates:
    """Predictions for a recipe on a cluster."""

    cluster: Cluster
    recipe: Recipe
    updates: tuple[tuple[str, Prediction], ...]
    """What is updated (a stack from 1 upwards for `greedy`, `all` otherwise) and its prediction, grid by
    grid."""


def predict_updates(
    cluster: str | Path | Cluster,
    recipe: str | Path | Recipe,
    *,
    ranks: int | Sequence[int] | None = None,
    grid: str = "auto",
    overrides: Mapping[str, object] | Sequence[str] = (),
    progress: bool | None = None,
) -> PredictedUpdates:
    """Predict an update of a recipe on a cluster that is not at hand; nothing is trained.

    ``cluster``: a TOML file, the name of a shipped cluster (`cotswold.simulate.shipped_clusters` lists them)
    or an object. ``ranks``: how many, or several numbers; all devices by default. ``grid``: rows and columns
    of ranks, such as ``"2x2"``; ``"auto"`` takes the fastest of each number. A supervised recipe is taken to
    have ten classes. Raises ClusterError, RecipeError, UserError (more ranks than the devices can have).
    """
    from cotswold import recipe as recipes
    from cotswold import simulate

    known = cluster if isinstance(cluster, simulate.Cluster) else simulate.load_cluster(cluster)
    with recipe_name(recipe) as name:
        assert name is not None, "there is a recipe"
        wanted = recipes.load(name, override_list(overrides), display_for(progress).say)
    if wanted.training.strategy == "batch":
        raise UserError(
            f"{wanted.name} is batch, which has evaluations and no updates; ask predict_evaluations"
        )
    if wanted.data.store is not None:
        from cotswold.training.data.stores import open_store, with_store_shape

        wanted = with_store_shape(wanted, open_store(wanted, Path()))
    updates = simulate.stages(wanted)
    found = tuple(
        (str(number) if len(updates) > 1 else "all", simulate.predict(known, update, each))
        for each in _grids(known, updates, ranks, grid)
        for number, update in enumerate(updates, 1)
    )
    return PredictedUpdates(known, wanted, found)


def _grids(
    cluster: Cluster, updates: Sequence[StackWork | LayerWork], ranks: int | Sequence[int] | None, grid: str
) -> list[Grid]:
    """The grids that are asked for."""
    from cotswold.geometry import Grid
    from cotswold.simulate import fastest_grid

    if grid != "auto":
        if ranks is not None:
            raise UserError(f"grid {grid} says how many ranks there are; leave out ranks")
        return [_possible(Grid.parse(grid), cluster)]
    counts = [ranks] if isinstance(ranks, int) else list(ranks or [cluster.size])
    if min(counts) < 1:
        raise UserError(f"ranks: {min(counts)} is not a number of ranks; write 4, or several as 1,4,16")
    _possible(Grid(1, max(counts)), cluster)
    return [fastest_grid(cluster, updates, count) for count in counts]


def _possible(grid: Grid, cluster: Cluster) -> Grid:
    """Raise UserError where a device would have more than some ranks."""
    if grid.size > RANKS_A_DEVICE * cluster.size:
        raise UserError(
            f"{grid.size} ranks are more than {RANKS_A_DEVICE} for each of the {cluster.size} devices of "
            f"{cluster.name}; give the cluster more hosts"
        )
    return grid
