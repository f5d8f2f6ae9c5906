"""The three main products of a block-local layer, as batched dense products on strided views.

Knows: the layouts of maps and filters, runs of blocks, merges that are faster. Does not know: gradients. Each
run reads the window of every field row in place; padding is skipped, never multiplied. bfloat16 is a storage
type: sums over field rows and overlapping blocks stay in float32.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from cotswold.geometry import BlockLocal
from cotswold.kernels.operands import accumulation_dtype, map_strides
from cotswold.ops.memory_format import empty_map, images_last_no_grad
from cotswold.ops.runs import BlockRun, all_runs

WIDE_ENOUGH = 32
"""Inputs of a field row (columns times channels) from which its product alone is efficient."""
SCRATCH_ELEMENTS = 1 << 20
"""Elements of merged field rows: 4 MiB of float32 (measured: up to twice as fast on narrow fields)."""


class FieldViews:
    """Strided views of a layer's receptive fields in its input map (images last)."""

    def __init__(self, values: Tensor, layer: BlockLocal) -> None:
        pitch = map_strides(values)
        assert pitch is not None, "the images of a map must be last"
        self._values, self._layer, self._pitch = values, layer, pitch
        self._column = pitch.channel * layer.input.channels

    def view(self, run: BlockRun, field_row: int, rows: int = 1, first: int = 0, every: int = 1) -> Tensor:
        """Field view ``(block, row, column * channel, image)`` of blocks ``first``, ``first + every``, ..."""
        layer, pitch = self._layer, self._pitch
        step = run.dy * layer.y.stride * pitch.row + run.dx * layer.x.stride * self._column
        top = run.y * layer.y.stride - layer.y.pad_before + field_row
        left = run.x * layer.x.stride - layer.x.pad_before + run.left
        offset = self._values.storage_offset() + top * pitch.row + left * self._column + first * step
        blocks = len(range(first, run.blocks, every))
        size = (blocks, rows, (run.right - run.left) * layer.input.channels, self._values.shape[0])
        return self._values.as_strided(size, (every * step, pitch.row, pitch.channel, 1), offset)


def block_outputs(values: Tensor, run: BlockRun, layer: BlockLocal) -> Tensor:
    """View of a run's outputs in an output map: ``(block, row in block, column in block * depth, image)``."""
    pitch = map_strides(values)
    assert pitch is not None, "the images of a map must be last"
    column = pitch.channel * layer.depth
    step = run.dy * layer.rows * pitch.row + run.dx * layer.columns * column
    offset = values.storage_offset() + run.y * layer.rows * pitch.row + run.x * layer.columns * column
    size = (run.blocks, layer.rows, layer.columns * layer.depth, values.shape[0])
    return values.as_strided(size, (step, pitch.row, pitch.channel, 1), offset)


def block_filters(filters: Tensor, run: BlockRun, layer: BlockLocal) -> Tensor:
    """View of a run's filters inside the map: ``(block, field row, field column * channel, neuron)``."""
    channels = layer.input.channels
    last_y, last_x = run.y + (run.blocks - 1) * run.dy + 1, run.x + (run.blocks - 1) * run.dx + 1
    blocks = filters[run.y : last_y, run.x : last_x].flatten(0, 1)
    return blocks[:, run.top : run.bottom, run.left * channels : run.right * channels]


def _rows_in_scratch(elements: int) -> int:
    """Number of field rows to merge if each needs ``elements`` of scratch."""
    return max(1, SCRATCH_ELEMENTS // max(elements, 1))


def _groups(rows: int, size: int) -> Iterable[tuple[int, int]]:
    """Yield ``(first row, rows)`` of groups of at most ``size`` rows."""
    return ((first, min(size, rows - first)) for first in range(0, rows, size))


def product(x: Tensor, filters: Tensor, layer: BlockLocal) -> Tensor:
    """Return ``Wx``, the map of responses."""
    x, filters = images_last_no_grad(x), filters.contiguous()
    out = empty_map(x, x.shape[0], layer.output)
    if out.numel() == 0:
        return out
    windows, images, neurons = FieldViews(x, layer), x.shape[0], layer.neurons
    for run in all_runs(layer):
        weights = block_filters(filters, run, layer)
        blocks, rows, wide, _ = weights.shape
        # bfloat16 keeps its float32 sum only inside one product, so one product takes all rows
        size = rows if accumulation_dtype(x.dtype) != x.dtype else max(1, WIDE_ENOUGH // wide)
        places = block_outputs(out, run, layer)
        in_place = layer.rows == 1
        total = places[:, 0] if in_place else x.new_empty(blocks, neurons, images)
        for first, rows_now in _groups(rows, size):
            matrix = weights[:, first : first + rows_now].reshape(blocks, -1, neurons).transpose(1, 2)
            view = windows.view(run, run.top + first, rows_now).reshape(blocks, -1, images)
            total.baddbmm_(matrix, view, beta=0 if first == 0 else 1)
        if not in_place:
            places.copy_(total.view(places.shape))
    return out


def adjoint(y: Tensor, filters: Tensor, layer: BlockLocal) -> Tensor:
    """Return ``W'y`` on the input map; overlapping fields are summed."""
    y, filters = images_last_no_grad(y), filters.contiguous()
    sums = empty_map(y, y.shape[0], layer.input, accumulation_dtype(y.dtype)).zero_()
    if sums.numel() == 0:
        return sums.to(y.dtype)
    windows, images = FieldViews(sums, layer), y.shape[0]
    for run in all_runs(layer):
        weights = block_filters(filters, run, layer)
        delta = block_outputs(y, run, layer).reshape(run.blocks, layer.neurons, images)
        blocks, rows, wide, neurons = weights.shape
        merge = sums.dtype != y.dtype or wide < WIDE_ENOUGH
        for first, rows_now in _groups(rows, _rows_in_scratch(blocks * wide * images) if merge else 1):
            # blocks of one colour do not overlap
            extent, step = (run.right - run.left, layer.x.stride) if run.dx else (rows_now, layer.y.stride)
            colours = min(-(-extent // step), blocks)
            matrix = weights[:, first : first + rows_now].reshape(blocks, -1, neurons)
            back = torch.bmm(matrix, delta).view(blocks, rows_now, wide, images) if merge else None
            for colour in range(colours):
                target = windows.view(run, run.top + first, rows_now, colour, colours)
                if back is None:
                    target[:, 0].baddbmm_(matrix[colour::colours], delta[colour::colours])
                else:
                    target.add_(back[colour::colours])
    return sums.to(y.dtype)


def outer_run(target: Tensor, delta: Tensor, x: Tensor, run: BlockRun, layer: BlockLocal, beta: int) -> None:
    """Set ``target = beta target + δx'`` for one run; ``target`` is a view from ``block_filters``."""
    windows, images = FieldViews(x, layer), x.shape[0]
    columns = block_outputs(delta, run, layer).reshape(run.blocks, layer.neurons, images).transpose(1, 2)
    blocks, rows, wide, neurons = target.shape
    whole = wide == target.stride(1) // max(target.stride(2), 1)
    size = _rows_in_scratch(blocks * wide * images) if whole else 1
    for first, rows_now in _groups(rows, size):
        view = windows.view(run, run.top + first, rows_now).reshape(blocks, -1, images)
        matrix = target[:, first : first + rows_now].view(blocks, -1, neurons)
        if target.dtype == x.dtype:
            matrix.baddbmm_(view, columns, beta=beta)
        elif beta == 0:
            matrix.copy_(torch.bmm(view, columns))
        else:
            matrix.add_(torch.bmm(view, columns))


def outer(delta: Tensor, x: Tensor, layer: BlockLocal) -> Tensor:
    """Return ``δx'`` summed over images: the filters' gradient, 0 for weights that read only padding."""
    delta, x = images_last_no_grad(delta), images_last_no_grad(x)
    padded = any((layer.y.pad_before, layer.y.pad_after, layer.x.pad_before, layer.x.pad_after))
    if padded or x.shape[0] == 0:
        gradient = x.new_zeros(layer.filters_shape)
    else:
        gradient = x.new_empty(layer.filters_shape)
    if x.shape[0] > 0:
        for run in all_runs(layer):
            outer_run(block_filters(gradient, run, layer), delta, x, run, layer, beta=0)
    return gradient
