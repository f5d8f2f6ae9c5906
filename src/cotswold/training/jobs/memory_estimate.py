"""What a recipe needs before anything is allocated: maps, weights, bytes and FLOPs.

Knows: counts from geometry and the batch. Does not know: tensors, what is free on the machine, seconds.
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
    """One stack of a recipe at the recipe's batch. Bytes are of float32; an update is one mini-batch."""

    input: MapShape
    responses: MapShape
    output: MapShape
    grid: tuple[int, int]
    neurons: int
    """Neurons in a block."""
    fan_in: int
    """Weights of a neuron."""
    parameters: int
    filter_bytes: int
    momentum_bytes: int
    activation_bytes: int
    """Maps that are alive at once in an update: the batch, responses, residual, their gradients, pooling."""
    gradient_bytes: int
    """The gradient of one row of blocks; more of it never exists."""
    update_flops: int
    update_bytes: int
    """Bytes moved by an update at the least: filters read for each product and written once, momentum read
    and written, maps read and written once a product."""

    @property
    def training_bytes(self) -> int:
        """Everything that an update of the stack holds."""
        return self.filter_bytes + self.momentum_bytes + self.activation_bytes + self.gradient_bytes


def stack_budget(geometry: StackGeometry, batch: int) -> StackBudget:
    """The budget of one stack for a mini-batch of ``batch`` pictures."""
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
    """The budgets of a recipe's stacks, from the input upwards."""
    return [stack_budget(geometry, batch) for geometry in recipe.stack_geometries()]


def filter_bytes(recipe: Recipe) -> int:
    """Bytes of the filters of all stacks."""
    return sum(budget.filter_bytes for budget in stack_budgets(recipe, 1))


def training_bytes(recipe: Recipe, batch: int) -> int:
    """Bytes that training the recipe's stacks takes at its worst moment; 0 for recipes without stacks."""
    budgets = stack_budgets(recipe, batch)
    if not budgets:
        return 0
    if recipe.offloaded:
        from cotswold.training.parameters.offload.memory_plan import BESIDE_BYTES, least_bytes

        rows = least_bytes(recipe.stack_geometries(), isinstance(recipe.training, JointTraining))
        return rows + maps_bytes(recipe, batch) + BESIDE_BYTES
    filters = sum(budget.filter_bytes for budget in budgets)
    if isinstance(recipe.training, JointTraining):
        return filters + sum(b.momentum_bytes for b in budgets) + maps_bytes(recipe, batch)
    return filters + max(budget.momentum_bytes + _working(budget) for budget in budgets)


def maps_bytes(recipe: Recipe, batch: int) -> int:
    """Bytes of maps, and of the gradient of a row of blocks, at the worst moment of an update."""
    budgets = stack_budgets(recipe, batch)
    kept = sum(batch * budget.input.size * FLOAT_BYTES for budget in budgets)
    return max(_working(budget) for budget in budgets) + (
        kept if isinstance(recipe.training, JointTraining) else 0
    )


def rank_bytes(recipe: Recipe, batch: int, grid: Grid) -> int:
    """Bytes that training the recipe's stacks takes at most on a rank of a grid."""
    parts = [StackPartition(geometry, grid) for geometry in recipe.stack_geometries()]
    filters = [max(box.size for box in part.blocks.boxes) * _block(part) for part in parts]
    windows = [max(box.size for box in part.windows) * part.geometry.input.channels for part in parts]
    # responses of an image, with those of others that pooling units read
    responses = [
        max(box.size for box in part.pooling.reads) * part.geometry.responses.channels for part in parts
    ]
    working = [batch * (4 * seen + 6 * made) for seen, made in zip(windows, responses, strict=True)]
    if isinstance(recipe.training, JointTraining):
        return FLOAT_BYTES * (2 * sum(filters) + batch * sum(windows) + max(working, default=0))
    moving = (one + maps for one, maps in zip(filters, working, strict=True))
    return FLOAT_BYTES * (sum(filters) + max(moving, default=0))


def _block(part: StackPartition) -> int:
    """Weights of a block."""
    return prod(part.geometry.filters.filters_shape[2:])


def largest_batch(needed: Callable[[int], int], most: int, available_bytes: int) -> int:
    """The largest mini-batch up to ``most`` for which ``needed`` bytes are there; 0 where none fits."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if needed(middle) <= available_bytes else (low, middle - 1)
    return low


def _working(budget: StackBudget) -> int:
    return budget.activation_bytes + budget.gradient_bytes
