"""The order in which the block rows of a stack are visited, and the parts of the input map complete after
each.

Knows: the block rows that cover each row of the input map, as integers. Does not know: tensors, files.

Decoding sums, at each row of the input map, over all block rows that cover it. A strip of the map is decoded
at once when the last of these is in memory, so that every sum has the same bits as in memory. Only block rows
that a later strip needs stay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from cotswold.geometry import BlockLocal


@dataclass(frozen=True)
class Strip:
    """Rows ``first .. stop`` of the input map, and the block rows that cover them, as a separate layer."""

    rows: slice
    blocks: slice
    layer: BlockLocal


@dataclass(frozen=True)
class Visit:
    """A visit of a block row, which completes ``strip``; no later strip needs the rows in ``finished``."""

    row: int
    strip: Strip | None
    finished: tuple[int, ...]


def window(layer: BlockLocal) -> int:
    """Return the maximum number of block rows that a walk needs at once."""
    held, most = 0, 0
    for descending in (False, True):
        for visit in block_rows(layer, descending):
            held += 1
            most = max(most, held)
            held -= len(visit.finished)
    return most


@lru_cache(maxsize=64)
def block_rows(layer: BlockLocal, descending: bool) -> tuple[Visit, ...]:
    """Return all block rows in ascending or descending order."""
    down, height = layer.grid[0], layer.input.height
    begin = [row * layer.y.stride - layer.y.pad_before for row in range(down)]
    end = [first + layer.y.size for first in begin]

    def edge(row: int) -> int:
        """Return the boundary between the strip of a row and the strip of the row before."""
        if row in (0, down):
            return 0 if row == 0 else height
        # In descending order, the gap between two fields belongs to the later one.
        place = max(end[row - 1], begin[row]) if descending else begin[row]
        return min(max(place, 0), height)

    held: list[int] = []
    visits = []
    for row in reversed(range(down)) if descending else range(down):
        held.append(row)
        first, stop = edge(row), edge(row + 1)
        strip = None
        if first < stop:
            over = [one for one in range(down) if begin[one] < stop and end[one] > first]
            strip = _strip(layer, slice(first, stop), slice(over[0], over[-1] + 1), begin, end)
        done = [one for one in held if (begin[one] >= first if descending else end[one] <= stop)]
        if row == (0 if descending else down - 1):
            done = list(held)
        held = [one for one in held if one not in done]
        visits.append(Visit(row, strip, tuple(done)))
    return tuple(visits)


def _strip(layer: BlockLocal, rows: slice, blocks: slice, begin: list[int], end: list[int]) -> Strip:
    """Return a strip as a layer; fields that cross its edges reach into padding, which is skipped."""
    y = replace(
        layer.y,
        pad_before=max(rows.start - begin[blocks.start], 0),
        pad_after=max(end[blocks.stop - 1] - rows.stop, 0),
    )
    part = replace(layer, input=replace(layer.input, height=rows.stop - rows.start), y=y)
    assert part.grid[0] == blocks.stop - blocks.start, "a strip must have the block rows that cover it"
    return Strip(rows, blocks, part)
