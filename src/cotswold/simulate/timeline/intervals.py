"""Intervals of time: unions and intersections.

Knows: half-open intervals. Does not know: their meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Stretch = tuple[float, float]


def union(stretches: Iterable[Stretch]) -> list[Stretch]:
    """Merge intervals into disjoint, sorted ones.

    >>> union([(3.0, 4.0), (0.0, 1.0), (0.5, 2.0)])
    [(0.0, 2.0), (3.0, 4.0)]
    """
    merged: list[Stretch] = []
    for first, stop in sorted(stretches):
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], stop)
        elif stop > first:
            merged.append((first, stop))
    return merged


def length(stretches: Sequence[Stretch]) -> float:
    """Total length of disjoint intervals."""
    return sum(stop - first for first, stop in stretches)


def common(a: Sequence[Stretch], b: Sequence[Stretch]) -> float:
    """Length of the intersection of two lists of disjoint, sorted intervals.

    >>> common([(0.0, 2.0), (3.0, 5.0)], [(1.0, 4.0)])
    2.0
    """
    total, i, j = 0.0, 0, 0
    while i < len(a) and j < len(b):
        total += max(0.0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return total
