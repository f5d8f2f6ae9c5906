"""Versions of shards: the number of updates and the incarnation of the bucket.

Knows: integers. Does not know: shards, the meaning of incarnations.

A bucket that is recovered from a disk may have fewer updates than clients have seen. So its versions are
greater than all earlier ones by whole incarnations. A client with an older version receives the shard, and
versions never decrease.
"""

from __future__ import annotations

_LIFE = 1 << 40
LIVES = 1 << 23
"""Maximum number of incarnations; all versions fit into messages."""


def later(version: int, lives: int) -> int:
    """Return the version with the same number of updates, ``lives`` incarnations later."""
    return version + lives * _LIFE


def is_version(number: int) -> bool:
    """True if the number is a possible version, with room for later ones."""
    return 0 <= number < later(0, LIVES)


def updates_of(version: int) -> int:
    """Return the number of updates of a version.

    >>> updates_of(later(7, 2))
    7
    """
    return version % _LIFE


def life_of(version: int) -> int:
    """Return the incarnation of a version.

    >>> life_of(later(7, 2))
    2
    """
    return version // _LIFE


def behind(now: int, then: int) -> int:
    """Return the number of updates from ``then`` to ``now``; across incarnations, the difference of their
    numbers of updates.

    >>> behind(7, 5), behind(later(7, 2), 5), behind(later(3, 2), 5)
    (2, 2, 0)
    """
    return max(0, updates_of(now) - updates_of(then))
