"""The update of a stack's filters on a device, for large bands of blocks at a time.

Knows: bands of blocks whose gradient fits a bound, both gradients as one product over twice the images. Does
not know: the rule (`sgd_rule`), how a product is computed.

Each launch on a device costs some 10 microseconds. So a band is large, and few operations process it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from cotswold.geometry import BlockLocal, Box
from cotswold.kernels import cuda
from cotswold.kernels.available import has_cuda_kernel
from cotswold.ops import sgd_rule as rules
from cotswold.ops.memory_format import images_last_no_grad
from cotswold.ops.products import outer
from cotswold.ops.state import Factors, StackState, StepRule

BAND_ELEMENTS = 1 << 26
"""Elements of the gradient held at a time on a device (at least one block): 256 MiB of float32."""


def bands(layer: BlockLocal, elements: int) -> Iterator[Box]:
    """Yield boxes of blocks that cover a layer, in order, with filters of at most ``elements`` elements.

    A box is some whole rows of blocks, or a part of one row if a row is too large; at least one block.
    """
    down, across = layer.grid
    block = layer.fan_in * layer.neurons
    for top, bottom in _parts(down, elements // (across * block)):
        for left, right in _parts(across, across if bottom - top > 1 else elements // block):
            yield Box((top, left), (bottom, right))


def _parts(extent: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield bounds of parts of nearly equal size, at most ``most`` (at least 1)."""
    count = -(-extent // max(most, 1))
    for number in range(count):
        yield extent * number // count, extent * (number + 1) // count


def can_move_by_bands(state: StackState) -> bool:
    """True if filters, momentum and norms are contiguous and on a CUDA device."""
    tensors = (state.filters, state.momentum, state.norms, state.master_filters)
    return state.filters.is_cuda and all(one is None or one.is_contiguous() for one in tensors)


def move_by_bands(
    state: StackState, layer: BlockLocal, decoding: Factors, encoding: Factors, rule: StepRule
) -> None:
    """Compute gradient and step of one band after another: ``δx'`` of decoding plus ``δx'`` of encoding.

    Each gradient is a sum over images, so that both together are one product over twice the images.
    """
    moved = state.filters if state.master_filters is None else state.master_filters
    narrow = None if moved is state.filters else state.filters
    # the kernel has no float16
    fused = has_cuda_kernel(state.filters) and moved.dtype == state.momentum.dtype
    rate = rule.rate / layer.fan_in
    alpha = state.alpha.to(moved.device)
    constants = cuda.update_constants(moved, rule.momentum, rate, rule.longest) if fused else None
    for blocks in bands(layer, BAND_ELEMENTS):
        band, seen = layer.part(blocks)
        gradient = outer(
            _joined(decoding[0], encoding[0], _neurons(blocks, layer)),
            _joined(decoding[1], encoding[1], seen),
            band,
        ).flatten(0, 1)
        filters, norms, momentum = (_of(one, blocks) for one in (moved, state.norms, state.momentum))
        if constants is not None:
            rounded = None if narrow is None else _of(narrow, blocks)
            cuda.update(filters, norms, momentum, gradient, alpha, constants, rounded)
            continue
        rules.filter_step(filters, norms, momentum, gradient.to(moved.dtype), alpha, rule)
        if narrow is not None:
            _of(narrow, blocks).copy_(filters)


def _neurons(blocks: Box, layer: BlockLocal) -> Box:
    """Box of the output map that some blocks write."""
    (top, left), (bottom, right) = blocks.start, blocks.stop
    return Box((top * layer.rows, left * layer.columns), (bottom * layer.rows, right * layer.columns))


def _joined(one: Tensor, other: Tensor, part: Box) -> Tensor:
    """Return a part of two maps as one batch, images last."""
    y, x = part.slices
    rows = [images_last_no_grad(values)[:, :, y, x].permute(2, 3, 1, 0) for values in (one, other)]
    return torch.cat(rows, 3).permute(3, 2, 0, 1)


def _of(values: Tensor, blocks: Box) -> Tensor:
    """View of contiguous values of some blocks, with one dimension of blocks."""
    return values[blocks.slices].view(blocks.size, *values.shape[2:])
