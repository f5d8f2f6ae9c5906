"""Contiguous ranges of an array's values, in the order of a file, as boxes.

Knows: boxes, row-major order. Does not know: files, tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from cotswold.geometry import Box


def stretch_boxes(shape: tuple[int, ...], start: int, stop: int) -> Iterator[Box]:
    """Yield the boxes whose values, in order, are the flat values ``start`` to ``stop`` of an array.

    There are at most two for each dimension, less one.

    >>> list(stretch_boxes((3, 4), 2, 9))
    [Box(start=(0, 2), stop=(1, 4)), Box(start=(1, 0), stop=(2, 4)), Box(start=(2, 0), stop=(3, 1))]
    """
    if start >= stop:
        return
    if len(shape) < 2:
        yield Box((start,), (stop,)) if shape else Box((), ())
        return
    row = prod(shape[1:])
    first, last = -(-start // row), stop // row
    if first > last:  # within one row
        yield from _in_row(first - 1, shape, start, stop)
        return
    yield from _in_row(first - 1, shape, start, first * row)
    if first < last:
        yield Box((first, *(0 for _ in shape[1:])), (last, *shape[1:]))
    yield from _in_row(last, shape, last * row, stop)


def _in_row(index: int, shape: tuple[int, ...], start: int, stop: int) -> Iterator[Box]:
    """Yield the boxes of a range that is inside ``[index]`` of the array."""
    row = prod(shape[1:])
    for box in stretch_boxes(shape[1:], start - index * row, stop - index * row):
        yield Box((index, *box.start), (index + 1, *box.stop))
