"""Timing of a device: every operation of a step on one stack's shape.

Knows: the operations of `mesh.stacks.step`, and the counts by which `simulate` predicts them. Does not know:
who starts ranks, the use of the rates. Functions here are called on ranks of a pool.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt

import torch
from torch import Tensor

from cotswold import ops
from cotswold.bench.ranks.rank import PoolRank
from cotswold.geometry import BlockLocal, Box, MapShape, Region, Smoothing, StackGeometry
from cotswold.ops.contrast import contrast_norm_backward
from cotswold.ops.filters import filter_norms
from cotswold.ops.memory_format import empty_map
from cotswold.ops.pooling import pool_backward
from cotswold.ops.products import adjoint_at, product_of
from cotswold.ops.step import InMemoryFilterAccess
from cotswold.ops.step_passes import dot

FLOPS_MOST = 2e10
"""FLOPs of a timed product, at most; of larger layers only some blocks are timed."""
VALUE_BYTES = 4
Amounts = dict[str, float]
"""FLOPs or bytes of every operation, by name."""
RULE = ops.StepRule(rate=1e-6)


def prepare(rank: PoolRank, geometry: StackGeometry, images: int) -> Amounts:
    """Make every operation an action of the rank; return the amount of work of each."""
    layer, kept = _piece(geometry.filters, images), Smoothing(geometry.pool.size, keep=True)
    torch.manual_seed(0)
    x, z = _random(layer.input, images), _random(layer.output, images)
    pooled = ops.l2_pool(z, kept)
    filters = torch.randn(layer.filters_shape)
    state = ops.StackState(
        filters, filter_norms(filters), torch.zeros_like(filters), torch.ones(()), torch.ones(())
    )
    blocks, pixels = Region(Box.whole(layer.grid)), Region(Box.whole((layer.input.height, layer.input.width)))
    like = filters.new_empty(0)
    scale = torch.randn(layer.output.channels, layer.output.height, layer.output.width)
    units, inputs = (VALUE_BYTES * images * shape.size for shape in (layer.output, layer.input))
    norm = Smoothing(geometry.norm.size, keep=True)
    buffer = like.new_empty(x.numel() // 2)
    half = x.permute(2, 3, 1, 0)[:, : layer.input.width // 2]
    product = float(images * layer.product_flops)

    actions: dict[str, tuple[Callable[[], object], float]] = {
        "Wx": (
            lambda: product_of(x, filters, layer, blocks, empty_map(like, images, layer.output)),
            product,
        ),
        "W'x": (
            lambda: adjoint_at(z, filters, layer, pixels, empty_map(like, images, layer.input)),
            product,
        ),
        "δx'": (lambda: InMemoryFilterAccess(state, layer).step((z, x), (z, x), RULE), 2 * product),
        "pool": (lambda: ops.l2_pool(z, kept), 2 * units),
        "pool'": (lambda: pool_backward(z, pooled, kept, None, 1.0), 4 * units),
        "residual": (lambda: _residual(x), 9 * inputs),
        "maps": (lambda: z.mul_(scale), 2 * units),
        "pack": (lambda: buffer[: half.numel()].view(half.shape).copy_(half), 2 * VALUE_BYTES * half.numel()),
    }
    if norm.size > 1:
        actions["norm"] = (lambda: ops.contrast_norm(pooled, norm), 6 * units)
        actions["norm'"] = (lambda: contrast_norm_backward(pooled, pooled, norm), 8 * units)
    rank.actions = {name: action for name, (action, _) in actions.items()}
    for action in rank.actions.values():
        action()  # compiles
    return {name: amount for name, (_, amount) in actions.items()}


def prepare_pace(rank: PoolRank, geometry: StackGeometry, images: int) -> float:
    """Add an action `pace`, one product of a stack; return its FLOPs.

    The clock of a shared machine drifts; the present time of the same product shows by how much.
    """
    layer = _piece(geometry.filters, images)
    torch.manual_seed(0)
    x, filters = _random(layer.input, images), torch.randn(layer.filters_shape)
    out = empty_map(x, images, layer.output)
    whole = Region(Box.whole(layer.grid))
    rank.actions["pace"] = lambda: product_of(x, filters, layer, whole, out)
    rank.actions["pace"]()
    return float(images * layer.product_flops)


def _residual(x: Tensor) -> None:
    """A step's passes over a decoded map; the scale of 1 leaves the map unchanged."""
    dot(x, x)
    dot(x, x)
    x.addcmul_(x, torch.zeros(()), value=-1)
    dot(x, x)
    x.mul_(1.0)


def _piece(layer: BlockLocal, images: int) -> BlockLocal:
    """A corner of a layer with enough work to be timed."""
    each = 2 * layer.fan_in * layer.neurons * images
    side = max(1, isqrt(int(FLOPS_MOST / each)))
    rows, columns = (min(side, count) for count in layer.grid)
    return layer.part(Box((0, 0), (rows, columns)))[0]


def _random(shape: MapShape, images: int) -> Tensor:
    map_ = empty_map(torch.empty(0), images, shape)
    return map_.normal_()
