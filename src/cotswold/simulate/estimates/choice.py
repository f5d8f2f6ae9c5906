"""The grid on which a network trains fastest.

Knows: the search over all factorisations, the order of grids. Does not know: how an update is predicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cotswold.geometry import Grid
from cotswold.recipe import Recipe
from cotswold.simulate.estimates.prediction import Workload, predict
from cotswold.simulate.hardware.cluster import Cluster
from cotswold.simulate.workloads.work import stages


def grids(ranks: int) -> list[Grid]:
    """Return every grid of a number of ranks.

    Args:
        ranks: Number of ranks.
    """
    return [Grid(rows, ranks // rows) for rows in range(1, ranks + 1) if ranks % rows == 0]


def predicted_grids(cluster: Cluster, recipe: Recipe, counts: Iterable[int]) -> list[Grid]:
    """Return every grid of these numbers of ranks, the one that trains a recipe fastest first; see `ranked`.

    Args:
        cluster: The cluster.
        recipe: The recipe.
        counts: Numbers of ranks.
    """
    return ranked(cluster, stages(recipe), [grid for count in counts for grid in grids(count)])


def choose_grid(cluster: Cluster, recipe: Recipe, ranks: int) -> Grid:
    """Return the grid of a number of ranks that trains a recipe fastest; see `ranked`.

    Args:
        cluster: The cluster.
        recipe: The recipe.
        ranks: Number of ranks.
    """
    return predicted_grids(cluster, recipe, [ranks])[0]


def fastest_grid(cluster: Cluster, updates: Sequence[Workload], ranks: int) -> Grid:
    """Return the grid of a number of ranks on which updates take the least total time; see `ranked`.

    Args:
        cluster: The cluster.
        updates: The updates.
        ranks: Number of ranks.
    """
    return ranked(cluster, updates, grids(ranks))[0]


def ranked(cluster: Cluster, updates: Sequence[Workload], choice: Iterable[Grid]) -> list[Grid]:
    """Sort grids by the total time of these updates.

    Grids on which every rank has enough memory come first; ties go to the fewest bytes on the wire.
    """

    def worth(grid: Grid) -> tuple[bool, float, int]:
        found = [predict(cluster, update, grid) for update in updates]
        unfit = not all(each.fits for each in found)
        return unfit, sum(each.seconds for each in found), sum(each.wire_bytes for each in found)

    return sorted(choice, key=worth)
