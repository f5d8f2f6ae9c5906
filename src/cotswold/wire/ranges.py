"""Sets of positions as ranges: union, difference, intersection.

Knows: integers. Does not know: what the positions stand for.

All functions take and return ascending, disjoint ranges (`Ranges`). Their time grows with the number of
ranges, not with the number of positions.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise

from cotswold.wire import Ranges


def union(*sets: Iterable[tuple[int, int]]) -> Ranges:
    """Return the union of ``sets``, which may overlap and be in any order.

    >>> union([(0, 3), (5, 6)], [(3, 4), (2, 3)])
    ((0, 4), (5, 6))
    """
    found: list[tuple[int, int]] = []
    for start, stop in sorted(each for one in sets for each in one if each[0] < each[1]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], stop))
        else:
            found.append((start, stop))
    return tuple(found)


def add(ranges: Ranges, more: Ranges) -> Ranges:
    """Return the union of ``ranges`` and ``more``; only ``more`` and its neighbours are compared.

    >>> add(((0, 3), (5, 6), (8, 9)), ((6, 7), (3, 4)))
    ((0, 4), (5, 7), (8, 9))
    """
    more = union(more)
    if not more:
        return ranges
    first = bisect_left(ranges, more[0][0], key=_stop)
    behind = bisect_right(ranges, more[-1][1], key=_start)
    return (*ranges[:first], *union(ranges[first:behind], more), *ranges[behind:])


def _start(place: tuple[int, int]) -> int:
    return place[0]


def _stop(place: tuple[int, int]) -> int:
    return place[1]


def intersection(left: Ranges, right: Ranges) -> Ranges:
    """Return the intersection.

    >>> intersection(((0, 3), (5, 9)), ((2, 6),))
    ((2, 3), (5, 6))
    """
    found: list[tuple[int, int]] = []
    i = j = 0
    while i < len(left) and j < len(right):
        start, stop = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if start < stop:
            found.append((start, stop))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def difference(left: Ranges, right: Ranges) -> Ranges:
    """Return the positions of ``left`` that are not in ``right``.

    >>> difference(((0, 9),), ((2, 3), (5, 12)))
    ((0, 2), (3, 5))
    """
    found: list[tuple[int, int]] = []
    j = 0
    for start, stop in left:
        while j < len(right) and right[j][1] <= start:
            j += 1
        k = j
        while k < len(right) and right[k][0] < stop:
            if start < right[k][0]:
                found.append((start, right[k][0]))
            start = max(start, right[k][1])
            k += 1
        if start < stop:
            found.append((start, stop))
    return tuple(found)


def clip(ranges: Ranges, start: int, stop: int) -> Ranges:
    """Return the positions from ``start`` to before ``stop``, in time that grows with the result.

    >>> clip(((0, 3), (5, 9), (12, 20)), 2, 7)
    ((2, 3), (5, 7))
    """
    if not ranges or ranges[-1][1] <= start:
        return ()
    first = bisect_left(ranges, (start,))
    if first and ranges[first - 1][1] > start:
        first -= 1
    found = ranges[first : bisect_left(ranges, (stop,))]
    return tuple((max(one, start), min(other, stop)) for one, other in found)


def size(ranges: Ranges) -> int:
    """Return the number of positions."""
    return sum(stop - start for start, stop in ranges)


def is_valid(ranges: Ranges) -> bool:
    """True if the ranges are ascending, disjoint, not empty and start at position 0 or above."""
    ends = [-1, *(end for each in ranges for end in each)]
    return all(one < other for one, other in pairwise(ends))
