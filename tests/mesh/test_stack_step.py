"""Training a stack on many ranks gives the results of one process."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.support.mesh.ranks import on_ranks
from torch import Tensor

from cotswold import ops
from cotswold.geometry import (
    BlockLocal,
    Box,
    Grid,
    MapShape,
    Smoothing,
    StackGeometry,
    StackPartition,
    Window,
)
from cotswold.mesh import Mesh
from cotswold.mesh.stacks import step as steps
from cotswold.mesh.stacks.share import RankShare

OBJECTIVE, RULE, STEPS = ops.StackObjective(sparsity=0.1), ops.StepRule(rate=2.0), 10
GRIDS = ["1x1", "1x2", "2x1", "2x2", "1x3", "3x2"]
STACKS = {
    "fields that overlap": StackGeometry(
        BlockLocal(MapShape(3, 21, 23), Window(7, 2), Window(6, 3), rows=2, columns=3, depth=2),
        Smoothing(5),
        Smoothing(3),
    ),
    "padded maps that keep their size": StackGeometry(
        BlockLocal(MapShape(2, 13, 11), Window(4, 2, 2, 1), Window(5, 2, 2, 2), rows=2, columns=1, depth=3),
        Smoothing(3, keep=True),
        Smoothing(4, keep=True),
    ),
    "fields wider than any part, and ranks with nothing": StackGeometry(
        BlockLocal(MapShape(1, 12, 10), Window(9, 3), Window(8, 2), rows=4, columns=5, depth=1),
        Smoothing(2, keep=True),
        Smoothing(1),
    ),
    "pixels that no field sees": StackGeometry(
        BlockLocal(MapShape(2, 20, 19), Window(2, 5), Window(3, 4), rows=3, columns=3, depth=2),
        Smoothing(4),
        Smoothing(2, keep=True),
    ),
}


def start(geometry: StackGeometry, blocks: Box) -> ops.StackState:
    filters = ops.random_filters(geometry.filters, 1, 0, torch.float64)[blocks.slices].contiguous()
    one = torch.ones((), dtype=torch.float64)
    return ops.StackState(filters, filters[:, :, 0, 0].clone(), torch.zeros_like(filters), one, one.clone())


def images(geometry: StackGeometry, index: int) -> Tensor:
    generator = torch.Generator().manual_seed(index)
    shape = geometry.input
    x = torch.rand(5, shape.channels, shape.height, shape.width, generator=generator, dtype=torch.float64)
    return ops.images_last(x - 0.4)


def losses_above(geometry: StackGeometry, index: int) -> Tensor:
    shape = geometry.output
    generator = torch.Generator().manual_seed(100 + index)
    return torch.randn(
        5, shape.channels, shape.height, shape.width, generator=generator, dtype=torch.float64
    ).mul(0.01)


def alone(geometry: StackGeometry) -> dict[str, Tensor]:
    state = start(geometry, Box.whole(geometry.filters.grid))
    ops.calibrate(state, images(geometry, 0), geometry, OBJECTIVE)
    reports = [
        ops.stack_step(
            state,
            images(geometry, index),
            geometry,
            OBJECTIVE,
            RULE,
            upstream=losses_above(geometry, index),
            input_gradient=True,
        )
        for index in range(STEPS)
    ]
    last = reports[-1].input_gradient
    assert last is not None
    losses = torch.stack([report.loss for report in reports])
    return {"losses": losses, "filters": state.filters, "alpha": state.alpha, "gradient": last}


def together(grid: str, geometry: StackGeometry) -> dict[str, Tensor]:
    mesh, partition = Mesh.of(grid), StackPartition(geometry, Grid.parse(grid))
    share, own = RankShare(mesh, partition), partition.output.box(mesh.rank)
    state = start(geometry, partition.blocks.box(mesh.rank))

    def seen(index: int) -> Tensor:
        return images(geometry, index)[:, :, *partition.windows[mesh.rank].slices]

    steps.calibrate(share, state, seen(0), OBJECTIVE)
    losses = []
    for index in range(STEPS):
        report = steps.step(
            share,
            state,
            seen(index),
            OBJECTIVE,
            RULE,
            upstream=losses_above(geometry, index)[:, :, *own.slices],
            input_gradient=True,
        )
        losses.append(report.loss)
    assert report.input_gradient is not None
    found = {"losses": torch.stack(losses), "alpha": state.alpha}
    return {**found, "filters": state.filters, "gradient": report.input_gradient}


def put_together(parts: list[Tensor], boxes: tuple[Box, ...], like: Tensor, plane: int) -> Tensor:
    """Assemble the whole from parts at boxes of dimensions ``plane`` and ``plane + 1``."""
    whole = torch.full_like(like, torch.nan)
    for part, box in zip(parts, boxes, strict=True):
        whole[(slice(None),) * plane + box.slices] = part
    return whole


def assert_agrees(found: Tensor, expected: Tensor) -> None:
    assert (found - expected).abs().max() <= 1e-10 * expected.abs().max()


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", STACKS)
def test_ten_steps_agree_with_those_of_one_process(name: str, grid: str) -> None:
    geometry = STACKS[name]
    expected, partition = alone(geometry), StackPartition(geometry, Grid.parse(grid))
    ranks = on_ranks(partition.grid.size, together, grid, geometry)
    for rank in ranks:
        assert_agrees(rank["losses"], expected["losses"])
        assert_agrees(rank["alpha"], expected["alpha"])
    filters = put_together([r["filters"] for r in ranks], partition.blocks.boxes, expected["filters"], 0)
    assert_agrees(filters, expected["filters"])
    gradient = put_together([r["gradient"] for r in ranks], partition.input.boxes, expected["gradient"], 2)
    assert_agrees(gradient, expected["gradient"])


def forward(grid: str, geometry: StackGeometry) -> tuple[Tensor, Tensor]:
    mesh, partition = Mesh.of(grid), StackPartition(geometry, Grid.parse(grid))
    share, state = RankShare(mesh, partition), start(geometry, partition.blocks.box(mesh.rank))
    state = replace(state, filters=state.filters.float(), norms=torch.ones_like(state.norms).float())
    x = images(geometry, 0)[:, :, *partition.windows[mesh.rank].slices].float()
    z, _ = steps.responses(share, state, x)
    return z.own.clone(), steps.output(share, state, x, OBJECTIVE.epsilon)


@pytest.mark.parametrize("grid", ["2x2", "1x3", "3x2"])
@pytest.mark.parametrize("name", STACKS)
def test_responses_have_the_bits_of_one_process_and_outputs_are_near(name: str, grid: str) -> None:
    geometry, partition = STACKS[name], StackPartition(STACKS[name], Grid.parse(grid))
    ((z, y),) = on_ranks(1, forward, "1x1", geometry)
    ranks = on_ranks(partition.grid.size, forward, grid, geometry)
    assert torch.equal(put_together([rank[0] for rank in ranks], partition.responses.boxes, z, 2), z)
    found = put_together([rank[1] for rank in ranks], partition.output.boxes, y, 2)
    torch.testing.assert_close(found, y)
