"""Runs: blocks that one batched product can process together.

Knows: which blocks of a layer see the same part of their field, so that padding is skipped and never
multiplied. Does not know: tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from cotswold.geometry import BlockLocal, Window


@dataclass(frozen=True)
class BlockRun:
    """Blocks ``(y, x), (y + dy, x + dx), ...`` with the same part of their fields inside the map.

    That part is rows ``top`` to ``bottom`` and columns ``left`` to ``right`` of the field. ``(dy, dx)`` is
    ``(0, 1)`` or ``(1, 0)``.
    """

    y: int
    x: int
    dy: int
    dx: int
    blocks: int
    top: int
    bottom: int
    left: int
    right: int


def _stretches(window: Window, extent: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield ``(first output, outputs, start, stop)``: outputs with the same part of their window inside."""
    outputs = window.outputs(extent)
    first, before = 0, window.padding_read(0, extent)
    for output in range(1, outputs + 1):
        here = window.padding_read(output, extent) if output < outputs else None
        if here != before:
            yield first, output - first, before[0], window.size - before[1]
            first, before = output, here or before


@lru_cache(maxsize=1024)
def row_runs(layer: BlockLocal, y: int) -> tuple[BlockRun, ...]:
    """Runs of one block row, from left to right."""
    low, high = layer.y.padding_read(y, layer.input.height)
    return tuple(
        BlockRun(y, x, 0, 1, blocks, low, layer.y.size - high, left, right)
        for x, blocks, left, right in _stretches(layer.x, layer.input.width)
    )


@lru_cache(maxsize=256)
def all_runs(layer: BlockLocal) -> tuple[BlockRun, ...]:
    """Runs that cover every block once: rows in the interior, columns at the left and right border."""
    runs = []
    for x, across, left, right in _stretches(layer.x, layer.input.width):
        for y, down, top, bottom in _stretches(layer.y, layer.input.height):
            if across < down:
                runs += [BlockRun(y, x + i, 1, 0, down, top, bottom, left, right) for i in range(across)]
            else:
                runs += [BlockRun(y + i, x, 0, 1, across, top, bottom, left, right) for i in range(down)]
    return tuple(runs)
