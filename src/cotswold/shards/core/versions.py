"""Versions of shards: how many updates each has had, in which life of its bucket.

Knows: whole numbers. Does not know: shards, what a life is.

A bucket that was lost and comes back from a disk has had fewer updates than somebody has seen. So its
versions are greater than all before by whole lives: whoever knows an older one is sent the shard, and no
version ever runs backwards.
"""

from __future__ import annotations

_LIFE = 1 << 40
LIVES = 1 << 23
"""So many at most: all versions can be said in messages."""


def later(version: int, lives: int) -> int:
    """The same number of updates, so many lives later."""
    return version + lives * _LIFE


def is_version(number: int) -> bool:
    """Whether a version can be so great, and there is room for those that follow."""
    return 0 <= number < later(0, LIVES)


def updates_of(version: int) -> int:
    """The number of updates.

    >>> updates_of(later(7, 2))
    7
    """
    return version % _LIFE


def life_of(version: int) -> int:
    """In which life.

    >>> life_of(later(7, 2))
    2
    """
    return version // _LIFE


def behind(now: int, then: int) -> int:
    """How many updates came since; of another life, how many more there were.

    >>> behind(7, 5), behind(later(7, 2), 5), behind(later(3, 2), 5)
    (2, 2, 0)
    """
    return max(0, updates_of(now) - updates_of(then))
