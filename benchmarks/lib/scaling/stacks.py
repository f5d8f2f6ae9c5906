"""Stacks for one process and for ranks, ready to be timed.

Knows: random images, the plain module and its partitioned one, their steps and forward passes. Does not know:
time, bars.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cotswold import ops
from cotswold.bench.ranks.rank import PoolRank
from cotswold.geometry import Grid, StackGeometry, StackPartition
from cotswold.mesh import Mesh, TrainedStack

STEP, FORWARD, LOCAL = "step", "forward", "local layer, forward"
RULE = ops.StepRule(rate=0.1)


def named(by: str, what: str) -> str:
    """Return the name of an action: the subject and the operation."""
    return f"{by}: {what}"


def random_images(geometry: StackGeometry, images: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return random images, images last, the same on every rank."""
    shape, generator = geometry.input, torch.Generator().manual_seed(0)
    x = torch.randn(shape.height, shape.width, shape.channels, images, generator=generator, dtype=dtype)
    return x.permute(3, 2, 0, 1)


def hold_plain(rank: PoolRank, by: str, geometry: StackGeometry, images: int) -> None:
    """Make the step and the forward pass of the plain module in this process actions."""
    from cotswold.nn import SparseAutoencoderStack

    stack, x = SparseAutoencoderStack(geometry).eval(), random_images(geometry, images)
    stack.calibrate(x)
    state = stack.state(torch.zeros_like(stack.filters))
    settings = stack.objective_settings

    rank.actions[named(by, STEP)] = lambda: ops.stack_step(state, x, geometry, settings, RULE)
    rank.actions[named(by, FORWARD)] = _forward(stack, x)


def hold_share(rank: PoolRank, by: str, grid: str, geometry: StackGeometry, images: int, first: bool) -> None:
    """Make the step and the forward pass of this rank's share of the stack actions."""
    stack, x = share_of(rank, grid, geometry, random_images(geometry, images), first)
    rank.cache[by] = stack
    rank.actions[named(by, STEP)] = lambda: stack.step(x, stack.objective_settings, RULE)
    rank.actions[named(by, FORWARD)] = lambda: stack(x)


def hold_layers(rank: PoolRank, ours: str, plain: str, geometry: StackGeometry, images: int) -> None:
    """Make the forward passes of a local layer, plain and partitioned over a 1x1 grid, actions."""
    from cotswold.mesh import partition
    from cotswold.nn import LocallyConnected2d

    layer, x = geometry.filters, random_images(geometry, images)
    size, shape = (layer.y.size, layer.x.size), (layer.input.height, layer.input.width)
    stride = (layer.y.stride, layer.x.stride)
    module = LocallyConnected2d(
        layer.input.channels, layer.depth, shape, size, stride=stride, block=(layer.rows, layer.columns)
    )
    for by, one in ((ours, partition(module, "1x1")), (plain, module)):
        rank.actions[named(by, LOCAL)] = _forward(one, x)


def _forward(module: Callable[[Tensor], object], x: Tensor) -> Callable[[], None]:
    def forward() -> None:
        with torch.no_grad():
            module(x)

    return forward


def share_of(
    rank: PoolRank, grid: str, geometry: StackGeometry, whole: Tensor, first: bool
) -> tuple[TrainedStack, Tensor]:
    """Return a rank's share, calibrated and at rest, and its part of the images.

    The input of a ``first`` stack is images; the input of another stack is distributed pixel by pixel over
    the ranks.
    """
    mesh, cut = Mesh.of(grid), StackPartition(geometry, Grid.parse(grid))
    below = None if first else cut.input.boxes
    stack = TrainedStack(mesh, geometry, below=below, dtype=whole.dtype)
    seen = cut.windows if below is None else below
    x = ops.images_last(whole[:, :, *seen[rank.number].slices].contiguous())
    stack.calibrate(x)
    stack.zero_momentum()
    return stack, x


def is_finite(rank: PoolRank, by: str) -> bool:
    """True if a share still has finite values."""
    stack: TrainedStack = rank.cache[by]
    return bool(stack.filters.isfinite().all() and stack.alpha.isfinite())
