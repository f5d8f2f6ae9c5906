"""The order in which the block rows of a stack pass by, and what of the input map is complete after each.

Knows: which block rows cover which rows of the input map: integers. Does not know: tensors, files.

Decoding sums, at each row of the input map, over all block rows that cover it. A strip of the map is decoded
in one go once the last of them is in memory, so that every sum is the one that it would be in memory, bit by
bit; only the block rows that a later strip needs stay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from cotswold.geometry import BlockLocal


@dataclass(frozen=True)
class Strip:
    """Rows ``first .. stop`` of the input map and the block rows that cover them, as a layer of their own."""

    rows: slice
    blocks: slice
    layer: BlockLocal


@dataclass(frozen=True)
class Visit:
    """A block row passes by: ``strip`` is complete with it, and ``done`` are no longer needed by any."""

    row: int
    strip: Strip | None
    done: tuple[int, ...]


def window(layer: BlockLocal) -> int:
    """The most block rows that a walk needs at once."""
    held, most = 0, 0
    for descending in (False, True):
        for visit in walk(layer, descending):
            held += 1
            most = max(most, held)
            held -= len(visit.done)
    return most


@lru_cache(maxsize=64)
def walk(layer: BlockLocal, descending: bool) -> tuple[Visit, ...]:
    """All block rows, from the first to the last or from the last to the first."""
    down, height = layer.grid[0], layer.input.height
    begin = [row * layer.y.stride - layer.y.pad_before for row in range(down)]
    end = [first + layer.y.size for first in begin]

    def edge(row: int) -> int:
        """Where the strip of a row begins, and that of the row before ends."""
        if row in (0, down):
            return 0 if row == 0 else height
        # descending, what lies between two fields goes with the one behind
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
    """Fields reach over the edges of a strip as they would into padding, which is skipped."""
    y = replace(
        layer.y,
        pad_before=max(rows.start - begin[blocks.start], 0),
        pad_after=max(end[blocks.stop - 1] - rows.stop, 0),
    )
    part = replace(layer, input=replace(layer.input, height=rows.stop - rows.start), y=y)
    assert part.grid[0] == blocks.stop - blocks.start, "a strip must have the block rows that cover it"
    return Strip(rows, blocks, part)
