"""What an update of a recipe has to do: its stacks, or its layers.

Knows: recipes, and the work that each strategy makes of one. Does not know: clusters, grids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cotswold.errors import ClusterError
from cotswold.geometry import MapShape, Window
from cotswold.recipe import Recipe, schema
from cotswold.simulate.layers import LayerGeometry, LayerWork
from cotswold.simulate.stacks import StackWork

CLASSES = 10
"""Outputs of a supervised recipe: only its data tell how many there are."""


def stages(recipe: Recipe) -> Sequence[StackWork | LayerWork]:
    """The updates of a recipe: one a stack for `greedy`, those below computed forward; one otherwise."""
    if recipe.training.strategy != "greedy":
        return [workload(recipe)]
    work = stack_work(recipe)
    return [replace(work, stacks=work.stacks[:count]) for count in range(1, len(work.stacks) + 1)]


def workload(recipe: Recipe) -> StackWork | LayerWork:
    """An update of all stacks of a recipe (for `greedy` of the last, those below forward), or all layers."""
    return stack_work(recipe) if recipe.trains_stacks else layer_work(recipe)


def stack_work(recipe: Recipe) -> StackWork:
    """An update of a recipe of stacks; raises ClusterError for others."""
    strategy = recipe.training.strategy
    if strategy == "supervised" or strategy == "batch" or strategy == "downpour":
        raise ClusterError(f"{recipe.name} is {strategy}; this takes recipes of stacks, greedy or joint")
    return StackWork(tuple(recipe.stack_geometries()), recipe.training.batch_size, strategy)


def layer_work(recipe: Recipe, classes: int = CLASSES) -> LayerWork:
    """An update of a supervised recipe with so many classes; raises ClusterError where it stands on a run.

    Pointwise layers and normalisation, which cost little, are left out.
    """
    if recipe.network.start is not None:
        raise ClusterError(
            f"{recipe.name} stands on the stacks of a run, which simulate does not open; name a grid instead"
        )
    if recipe.network.module is not None:
        raise ClusterError(f"{recipe.name} is of a module in Python, which simulate does not see")
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
