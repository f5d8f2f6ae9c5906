"""Preflight checks: whether a recipe fits the memory and the disk of this machine, before any allocation.

Knows: the bytes needed and available. Does not know: how either is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from cotswold.data import Store, shuffle_bytes
from cotswold.geometry import Grid
from cotswold.host import available_bytes, require_memory
from cotswold.recipe import Recipe
from cotswold.training.distributed import SINGLE_PROCESS, RankContext
from cotswold.training.jobs.memory_estimate import largest_batch, rank_bytes, training_bytes
from cotswold.training.jobs.restore import needed_bytes


def check_memory(
    recipe: Recipe, classes: int, rank_context: RankContext = SINGLE_PROCESS, *, reading: int = 0
) -> None:
    """Raise MemoryLimitError, with the figures and a remedy, if the recipe's training does not fit in memory.

    The ranks that share a host must fit together; ``reading`` is the bytes of their shuffle buffers in total.
    Raises GeometryError, RecipeError or RunError if the network cannot be built at all.
    """
    available, batch = available_bytes(), recipe.training.batch_size
    needed: Callable[[int], int] = partial(needed_bytes, recipe, classes)
    where = ""
    if rank_context.ranks.size > 1 or rank_context.mesh is not None:
        grid = Grid(1, 1) if rank_context.mesh is None else rank_context.mesh.grid
        ranks, replicas = rank_context.local_size, rank_context.share.count
        of_grid = f" of a {grid} grid" if rank_context.mesh is not None else ""
        where = f" by {ranks} ranks{of_grid} on one host"
        needed = partial(_on_host, recipe, classes, grid, ranks, replicas)
    available -= reading
    fitting = largest_batch(needed, batch, available)
    remedy = (
        f"training.batch_size={fitting} would fit"
        if fitting
        else "not even training.batch_size=1 would fit; make the network smaller or use a larger machine"
    )
    if rank_context.ranks.size == 1 and rank_context.mesh is None and _fits_from_disk(recipe, available):
        remedy = (
            f"{remedy}, and so would training.offload=disk" if fitting else "training.offload=disk would fit"
        )
    require_memory(
        needed(batch) + reading, f"training {recipe.name}{where}", f"{remedy} (cotswold info shows each part)"
    )


def _fits_from_disk(recipe: Recipe, available: int) -> bool:
    """Return True if in-memory stacks would fit with offloaded parameters."""
    if not recipe.network.stacks or recipe.offloaded:
        return False
    training = recipe.training.model_copy(update={"offload": "disk"})
    return training_bytes(recipe.model_copy(update={"training": training}), training.batch_size) <= available


def _on_host(recipe: Recipe, classes: int, grid: Grid, ranks: int, replicas: int, batch: int) -> int:
    """Return the bytes of all ranks of a host; each rank builds a whole supervised network before
    partitioning. Replicas divide the batch.
    """
    batch = -(-batch // replicas)
    if not recipe.network.stacks:
        return ranks * needed_bytes(recipe, classes, batch)
    return ranks * rank_bytes(recipe, batch, grid)


def check_resources(
    recipe: Recipe, store: Store, directory: Path, rank_context: RankContext = SINGLE_PROCESS
) -> None:
    """Check the memory with the samples of this store; raise DiskFullError if the run's files do not fit."""
    check_memory(recipe, store.outputs, rank_context, reading=shuffle_bytes(store, "train"))
    if recipe.training.strategy == "batch" and recipe.is_served and recipe.cluster.ray_address is None:
        ranks = 1 if recipe.worker_grid is None else Grid.parse(recipe.worker_grid).size
        from cotswold.training.data.remote import check_cached_bytes

        check_cached_bytes(store, ranks * recipe.cluster.workers)
    if recipe.offloaded:
        from cotswold.training.parameters.offload.parameters import check_disk

        check_disk(recipe, directory)
