"""Memory-bound operations: norms of filters, pooling, contrast normalisation, forward and backward.

Knows: the least bytes that each must move, the bar. Does not know: time, processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, prod

import torch
from torch import Tensor

from cotswold import ops
from cotswold.bench.effort import Effort
from cotswold.bench.kernels.baselines import Action
from cotswold.bench.kernels.ceilings import ADDED, COPIED, addition, copying
from cotswold.bench.kernels.shapes import Shape
from cotswold.bench.measure import interleaved
from cotswold.bench.row import COTSWOLD, Ceiling, Row, RowKey, timed
from cotswold.geometry import BlockLocal

BAR = 0.6
CACHE_BYTES = 60e6
"""Operands up to this size may be in caches; their rate does not measure memory, so they have no bar."""
FLOAT_BYTES = 4
FILTER_BYTES = 100e6


@dataclass(frozen=True)
class MemoryPass:
    """One pass over memory; ``bytes`` counts each input and output map once."""

    name: str
    bytes: int
    action: Action


def measured(shape: Shape, effort: Effort) -> list[Row]:
    """Every pass of a stack compared with ``y += x`` and ``copy_`` of the same number of bytes."""
    found = memory_passes(shape)
    actions: dict[tuple[str, str], Action] = {(one.name, COTSWOLD): one.action for one in found}
    # ``y += x`` reads two values and writes one
    elements = {one.name: max(1, one.bytes // (3 * FLOAT_BYTES)) for one in found}
    actions |= {(name, ADDED): addition(count) for name, count in elements.items()}
    actions |= {(one.name, COPIED): copying(max(1, one.bytes // (2 * FLOAT_BYTES))) for one in found}
    samples = interleaved(actions, effort.rounds)
    rows = []
    for one in found:
        ceiling = Ceiling(ADDED, 3 * FLOAT_BYTES * elements[one.name], samples[one.name, ADDED])
        bar = BAR if one.bytes > CACHE_BYTES else None
        taken = {by: samples[one.name, by] for by in (COTSWOLD, ADDED, COPIED)}
        place = RowKey("smoothing", shape.name, one.name, shape.images)
        rows.append(
            timed(place, one.bytes, taken, [ceiling.compare(one.bytes, taken[COTSWOLD], bar)], "GB/s")
        )
    return rows


def memory_passes(shape: Shape) -> list[MemoryPass]:
    """Norms, pooling and normalisation of a stack."""
    assert shape.stack is not None, "stacks are measured"
    stack, responses = shape.stack, shape.stack.responses
    filters = torch.randn(_rows_of_blocks(shape.layer), *shape.layer.filters_shape[1:])
    z = torch.randn(responses.height, responses.width, responses.channels, shape.images).permute(3, 2, 0, 1)
    found = [
        *_forward_and_backward("filter norms", ops.filter_norms, filters),
        *_forward_and_backward("L2 pooling", lambda x: ops.l2_pool(x, stack.pool), z),
    ]
    if stack.norm.size == 1:
        return found
    pooled = ops.l2_pool(z, stack.pool)
    return [
        *found,
        *_forward_and_backward("contrast normalisation", lambda x: ops.contrast_norm(x, stack.norm), pooled),
    ]


def _rows_of_blocks(layer: BlockLocal) -> int:
    """Number of rows of blocks whose filters exceed every cache."""
    down, *rest = layer.filters_shape
    return min(down, ceil(FILTER_BYTES / (FLOAT_BYTES * prod(rest))))


def _forward_and_backward(name: str, function: Callable[[Tensor], Tensor], x: Tensor) -> list[MemoryPass]:
    leaf = x.detach().requires_grad_()
    y = function(leaf)
    above = torch.randn_like(y)
    once = (x.numel() + y.numel()) * FLOAT_BYTES

    def forward() -> object:
        with torch.no_grad():
            return function(x)

    def backward() -> object:
        return torch.autograd.grad(y, leaf, above, retain_graph=True)

    read_again = x.numel() * FLOAT_BYTES
    return [MemoryPass(name, once, forward), MemoryPass(f"{name}, backward", once + read_again, backward)]
