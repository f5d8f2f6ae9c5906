from __future__ import annotations

from dataclasses import replace

import pytest

from cotswold.geometry import BlockLocal, MapShape, Smoothing, StackGeometry, Window
from cotswold.recipe import Recipe, load
from cotswold.training.jobs.memory_estimate import maps_bytes, training_bytes
from cotswold.training.parameters.offload.memory_plan import (
    OTHER_BYTES,
    disk_bytes,
    least_bytes,
    min_rows,
    row_bytes,
    row_capacities,
)


def stack(height: int) -> StackGeometry:
    """Return a row of blocks for every two rows of the map, of which three cover a row of it; 1 kB
    per row.
    """
    layer = BlockLocal(MapShape(1, height, 8), Window(5, 2), Window(4, 4), 1, 1, 25)
    return StackGeometry(layer, Smoothing(1), Smoothing(1))


@pytest.fixture
def large() -> Recipe:
    return load("coates2013-11b")


def offloaded(recipe: Recipe, **fields: object) -> Recipe:
    return recipe.model_copy(
        update={"training": recipe.training.model_copy(update={"offload": "disk", **fields})}
    )


def test_a_stack_has_room_for_the_rows_that_a_strip_needs_however_little_memory_there_is() -> None:
    assert row_capacities([stack(101)], 0, is_joint=False) == [min_rows(stack(101).filters)]


def test_with_memory_enough_every_row_has_room() -> None:
    stacks = [stack(101), stack(41)]
    assert row_capacities(stacks, 1 << 30, is_joint=False) == [
        geometry.filters.grid[0] for geometry in stacks
    ]


def test_what_rows_take_together_is_no_more_than_there_is() -> None:
    stacks = [stack(101), stack(41)]
    for given in range(least_bytes(stacks, is_joint=False), 100 * row_bytes(stacks[0].filters), 977):
        found = row_capacities(stacks, given, is_joint=False)
        momentum = 3 * row_bytes(stacks[0].filters)
        assert (
            momentum
            + sum(count * row_bytes(geometry.filters) for count, geometry in zip(found, stacks, strict=True))
            <= given
        )


def test_a_stack_of_one_row_needs_room_for_one() -> None:
    assert min_rows(replace(stack(5).filters, depth=3)) == 1


def test_training_from_the_disk_needs_memory_for_some_rows_and_the_maps_alone(large: Recipe) -> None:
    batch = large.training.batch_size
    needed = training_bytes(offloaded(large), batch)
    assert (
        needed
        == least_bytes(large.stack_geometries(), is_joint=False) + maps_bytes(large, batch) + OTHER_BYTES
    )
    assert needed < training_bytes(large, batch) / 3


def test_the_disk_holds_filters_and_momentum_once_in_use_and_once_a_checkpoint(large: Recipe) -> None:
    sizes = [4 * geometry.filters.parameters for geometry in large.stack_geometries()]
    joint = load(
        "coates2013-11b",
        ["training.strategy=joint", "training.offload=disk", "training.checkpoints_kept=1"],
    )
    assert disk_bytes(joint) == 2 * 2 * sum(sizes)


def test_greedy_training_keeps_generations_of_one_stack_only(large: Recipe) -> None:
    sizes = [4 * geometry.filters.parameters for geometry in large.stack_geometries()]
    greedy = offloaded(large, checkpoints_kept=1)
    rest = sum(sizes) - max(sizes)
    assert disk_bytes(greedy) == rest + 2 * 2 * max(sizes)
