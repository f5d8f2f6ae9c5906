"""Predicted time, bytes and cost of a recipe's updates on a described cluster.

Knows: the combination of a cluster, a recipe and grids. Does not know: the prediction, display.
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
    from cotswold.simulate import Cluster, LayerWork, Prediction, ReplicatedWork, StackWork

RANKS_PER_DEVICE = 4


@dataclass(frozen=True)
class PredictedUpdates:
    """Predictions for a recipe on a cluster.

    Args:
        cluster: The cluster.
        recipe: The recipe.
        updates: For each grid, the updated part (a stack from 1 for `greedy`, else `all`) and its prediction.
    """

    cluster: Cluster
    recipe: Recipe
    updates: tuple[tuple[str, Prediction], ...]
    """For each grid, the updated part (a stack from 1 for `greedy`, else `all`) and its prediction."""


def predict_updates(
    cluster: str | Path | Cluster,
    recipe: str | Path | Recipe,
    *,
    ranks: int | Sequence[int] | None = None,
    grid: str = "auto",
    overrides: Mapping[str, object] | Sequence[str] = (),
    progress: bool | None = None,
) -> PredictedUpdates:
    """Predict the time of an update of a recipe on a cluster, without training.

    Args:
        cluster: A TOML file, the name of a shipped cluster (see `cotswold.simulate.shipped_clusters`), or an
            object.
        recipe: A recipe, or its name or path; a supervised one is assumed to have ten classes.
        ranks: Number of ranks of all replicas, or several numbers. [all devices]
        grid: Rows and columns of ranks of each replica, such as ``"2x2"``; ``"auto"`` selects the fastest for
            each number.
        overrides: Changed fields of the recipe, ``{"training.epochs": 2}`` or ``["training.epochs=2"]``.
        progress: Show progress. [if on a terminal or in a notebook]

    Raises:
        ClusterError: if the description of the cluster is invalid.
        RecipeError: if the recipe is invalid.
        UserError: if the devices cannot have that many ranks.
    """
    from cotswold import recipe as recipes
    from cotswold import simulate

    known = cluster if isinstance(cluster, simulate.Cluster) else simulate.load_cluster(cluster)
    with recipe_name(recipe) as name:
        assert name is not None, "there is a recipe"
        wanted = recipes.load(name, override_list(overrides), display_for(progress).show)
    if wanted.training.strategy == "batch":
        raise UserError(f"{wanted.name} has strategy batch, which has no updates; use predict_evaluations")
    if wanted.data.store is not None:
        from cotswold.training.data.stores import open_store, with_store_shape

        wanted = with_store_shape(wanted, open_store(wanted, Path()))
    updates: Sequence[StackWork | LayerWork | ReplicatedWork] = simulate.stages(wanted)
    replicas = wanted.mesh.replicas
    chosen = _grids(known, updates, ranks, grid, replicas)
    if replicas > 1:
        updates = [
            simulate.ReplicatedWork(each, replicas)
            for each in updates
            if isinstance(each, simulate.LayerWork)  # replicas belong to supervised
        ]
    found = tuple(
        (str(number) if len(updates) > 1 else "all", simulate.predict(known, update, each, replicas))
        for each in chosen
        for number, update in enumerate(updates, 1)
    )
    return PredictedUpdates(known, wanted, found)


def _grids(
    cluster: Cluster,
    updates: Sequence[StackWork | LayerWork | ReplicatedWork],
    ranks: int | Sequence[int] | None,
    grid: str,
    replicas: int,
) -> list[Grid]:
    """Return the requested grids, of each replica."""
    from cotswold.geometry import Grid
    from cotswold.simulate import fastest_grid

    if grid != "auto":
        if ranks is not None:
            raise UserError(f"grid {grid} determines the number of ranks; omit ranks")
        return [_check_grid(Grid.parse(grid), cluster, replicas)]
    counts = [ranks] if isinstance(ranks, int) else list(ranks or [cluster.size])
    if min(counts) < 1:
        raise UserError(f"ranks must be at least 1, got {min(counts)}; write 4, or several as 1,4,16")
    if any(count % replicas for count in counts):
        raise UserError(
            f"{replicas} replicas cannot divide {' or '.join(map(str, counts))} ranks; give a multiple of "
            f"{replicas} as ranks"
        )
    _check_grid(Grid(1, max(counts)), cluster)
    return [fastest_grid(cluster, updates, count // replicas) for count in counts]


def _check_grid(grid: Grid, cluster: Cluster, replicas: int = 1) -> Grid:
    """Return ``grid``. Raises UserError if a device would have too many ranks."""
    ranks = replicas * grid.size
    if ranks > RANKS_PER_DEVICE * cluster.size:
        raise UserError(
            f"{ranks} ranks are more than {RANKS_PER_DEVICE} for each of the {cluster.size} devices of "
            f"{cluster.name}; give the cluster more hosts"
        )
    return grid
