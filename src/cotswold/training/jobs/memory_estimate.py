"""Estimates of a recipe's maps, weights, bytes and FLOPs before anything is allocated.

Knows: counts from geometry and the batch. Does not know: tensors, free memory of the machine, seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from cotswold.geometry import Grid, MapShape, StackGeometry, StackPartition
from cotswold.recipe import Recipe
from cotswold.recipe.schema import JointTraining

FLOAT_BYTES = 4


@dataclass(frozen=True)
class StackBudget:
    """One stack of a recipe at the recipe's batch size, with bytes of float32; an update is one
    mini-batch.
    """

    input: MapShape
    responses: MapShape
    output: MapShape
    grid: tuple[int, int]
    neurons: int
    """Neurons per block."""
    fan_in: int
    """Weights per neuron."""
    parameters: int
    filter_bytes: int
    momentum_bytes: int
    activation_bytes: int
    """Bytes of maps alive at once in an update: the batch, responses, residual, their gradients, pooling."""
    gradient_bytes: int
    """The gradient of one row of blocks, the most that exists at once."""
    update_flops: int
    update_bytes: int
    """The minimum of bytes moved by an update.

    Filters are read for each product and written once, momentum is read and written, maps are read and
    written once per product.
    """

    @property
    def training_bytes(self) -> int:
        """All bytes that an update of the stack holds."""
        return self.filter_bytes + self.momentum_bytes + self.activation_bytes + self.gradient_bytes


def stack_budget(geometry: StackGeometry, batch: int) -> StackBudget:
    """Return the estimate of one stack for a mini-batch of ``batch`` samples."""
    filters = geometry.filters
    parameters = filters.parameters
    input_bytes = batch * geometry.input.size * FLOAT_BYTES
    response_bytes = batch * geometry.responses.size * FLOAT_BYTES
    pooled_bytes = batch * geometry.pooled.size * FLOAT_BYTES
    return StackBudget(
        input=geometry.input,
        responses=geometry.responses,
        output=geometry.output,
        grid=filters.grid,
        neurons=filters.neurons,
        fan_in=filters.fan_in,
        parameters=parameters,
        filter_bytes=parameters * FLOAT_BYTES,
        momentum_bytes=parameters * FLOAT_BYTES,
        activation_bytes=3 * input_bytes + 2 * response_bytes + 3 * pooled_bytes,
        gradient_bytes=parameters // filters.grid[0] * FLOAT_BYTES,
        update_flops=batch * geometry.update_flops,
        update_bytes=(5 + 1 + 2) * parameters * FLOAT_BYTES + 5 * (input_bytes + response_bytes),
    )


def stack_budgets(recipe: Recipe, batch: int) -> list[StackBudget]:
    """Return the estimates of a recipe's stacks, from the lowest."""
    return [stack_budget(geometry, batch) for geometry in recipe.stack_geometries()]


def filter_bytes(recipe: Recipe) -> int:
    """Return the bytes of the filters of all stacks."""
    return sum(budget.filter_bytes for budget in stack_budgets(recipe, 1))


def training_bytes(recipe: Recipe, batch: int) -> int:
    """Return the peak bytes of training the recipe's stacks; 0 for recipes without stacks."""
    budgets = stack_budgets(recipe, batch)
    if not budgets:
        return 0
    if recipe.offloaded:
        from cotswold.training.parameters.offload.memory_plan import OTHER_BYTES, least_bytes

        rows = least_bytes(recipe.stack_geometries(), isinstance(recipe.training, JointTraining))
        return rows + maps_bytes(recipe, batch) + OTHER_BYTES
    filters = sum(budget.filter_bytes for budget in budgets)
    if isinstance(recipe.training, JointTraining):
        return filters + sum(b.momentum_bytes for b in budgets) + maps_bytes(recipe, batch)
    return filters + max(budget.momentum_bytes + _working(budget) for budget in budgets)


def maps_bytes(recipe: Recipe, batch: int) -> int:
    """Return the peak bytes of an update's maps and of the gradient of a row of blocks."""
    budgets = stack_budgets(recipe, batch)
    kept = sum(batch * budget.input.size * FLOAT_BYTES for budget in budgets)
    return max(_working(budget) for budget in budgets) + (
        kept if isinstance(recipe.training, JointTraining) else 0
    )


def rank_bytes(recipe: Recipe, batch: int, grid: Grid) -> int:
    """Return the peak bytes of training the recipe's stacks on one rank of a grid."""
    parts = [StackPartition(geometry, grid) for geometry in recipe.stack_geometries()]
    filters = [max(box.size for box in part.blocks.boxes) * _block(part) for part in parts]
    windows = [max(box.size for box in part.windows) * part.geometry.input.channels for part in parts]
    # responses of an image, including those that pooling units read from other ranks
    responses = [
        max(box.size for box in part.pooling.reads) * part.geometry.responses.channels for part in parts
    ]
    working = [batch * (4 * seen + 6 * made) for seen, made in zip(windows, responses, strict=True)]
    if isinstance(recipe.training, JointTraining):
        return FLOAT_BYTES * (2 * sum(filters) + batch * sum(windows) + max(working, default=0))
    moving = (one + maps for one, maps in zip(filters, working, strict=True))
    return FLOAT_BYTES * (sum(filters) + max(moving, default=0))


def _block(part: StackPartition) -> int:
    return prod(part.geometry.filters.filters_shape[2:])


def largest_batch(needed: Callable[[int], int], most: int, available_bytes: int) -> int:
    """Return the largest mini-batch up to ``most`` whose ``needed`` bytes are available; 0 if none fits."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if needed(middle) <= available_bytes else (low, middle - 1)
    return low


def _working(budget: StackBudget) -> int:
    return budget.activation_bytes + budget.gradient_bytes
