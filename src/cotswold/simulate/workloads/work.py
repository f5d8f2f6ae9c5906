"""The work of a recipe's update: its stacks, or its layers.

Knows: recipes, and the work of each strategy. Does not know: clusters, grids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cotswold.errors import ClusterError
from cotswold.geometry import MapShape, Window
from cotswold.recipe import Recipe, schema
from cotswold.simulate.workloads.layers import LayerGeometry, LayerWork
from cotswold.simulate.workloads.stacks import StackWork

CLASSES = 10
"""Number of outputs assumed for a supervised recipe; only its data has the true number."""


def stages(recipe: Recipe) -> Sequence[StackWork | LayerWork]:
    """Return the updates of a recipe.

    Args:
        recipe: The recipe.

    Returns:
        For `greedy` one update per stack, with the stacks below computed forward; otherwise one update.

    Raises:
        ClusterError: The recipe has a module in Python, or builds on a run.
    """
    if recipe.training.strategy != "greedy":
        return [workload(recipe)]
    work = stack_work(recipe)
    return [replace(work, stacks=work.stacks[:count]) for count in range(1, len(work.stacks) + 1)]


def workload(recipe: Recipe) -> StackWork | LayerWork:
    """Return the update of a recipe: of all stacks (for `greedy` of the last), or of all layers.

    Args:
        recipe: The recipe.

    Raises:
        ClusterError: The recipe has a module in Python, or builds on a run.
    """
    return stack_work(recipe) if recipe.trains_stacks else layer_work(recipe)


def stack_work(recipe: Recipe) -> StackWork:
    """Return the update of a recipe of stacks; ClusterError for others."""
    strategy = recipe.training.strategy
    if strategy == "supervised" or strategy == "batch" or strategy == "downpour":
        raise ClusterError(
            f"{recipe.name} has strategy {strategy}; a recipe of stacks, greedy or joint, is needed"
        )
    return StackWork(tuple(recipe.stack_geometries()), recipe.training.batch_size, strategy)


def layer_work(recipe: Recipe, classes: int = CLASSES) -> LayerWork:
    """Return the update of a supervised recipe with this number of classes.

    Pointwise layers and normalisation are omitted because they cost little. Raises ClusterError for a recipe
    that builds on a run, or has a module in Python.
    """
    if recipe.network.backbone is not None:
        raise ClusterError(
            f"{recipe.name} builds on the stacks of a run, which simulate does not open; name a grid instead"
        )
    if recipe.network.module is not None:
        raise ClusterError(f"{recipe.name} has a module in Python, which simulate cannot analyse")
    below, layers = recipe.input, []
    for entry in [*recipe.network.layers, schema.Linear(type="linear", features=classes)]:
        found = _layer(entry, below)
        if found is not None:
            layers.append(found)
            below = found.output
    return LayerWork(tuple(layers), recipe.training.batch_size)


def _layer(entry: schema.Layer, below: MapShape) -> LayerGeometry | None:
    match entry:
        case schema.Linear():
            return LayerGeometry.full(below, entry.features)
        case schema.Local():
            y, x = schema.windows(entry.kernel_size, entry.stride, entry.padding, below)
            return LayerGeometry("local", below, y, x, entry.channels, schema.pair(entry.block))
        case schema.Convolution():
            y, x = schema.windows(entry.kernel_size, entry.stride, entry.padding, below)
            return LayerGeometry("convolution", below, y, x, entry.channels)
        case schema.Pool():
            window = Window(
                entry.kernel_size, entry.stride or (1 if entry.kind == "l2" else entry.kernel_size)
            )
            return LayerGeometry("pool", below, window, window, below.channels)
        case _:
            return None
