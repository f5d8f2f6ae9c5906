"""Versions of shards: the number of updates and the incarnation of the bucket.

Knows: integers. Does not know: shards, the meaning of incarnations.

A bucket that is recovered from a disk may have fewer updates than clients have seen. So its versions are
greater than all earlier ones by whole incarnations. A client with an older version receives the shard, and
versions never decrease.
"""

from __future__ import annotations

_INCARNATION = 1 << 40
MAX_INCARNATIONS = 1 << 23
"""Maximum number of incarnations; all versions fit into messages."""


def version_after_restarts(version: int, incarnations: int) -> int:
    """Return the version with the same number of updates, ``incarnations`` incarnations later."""
    return version + incarnations * _INCARNATION


def is_version(number: int) -> bool:
    """True if the number is a possible version, with room for later ones."""
    return 0 <= number < version_after_restarts(0, MAX_INCARNATIONS)


def update_count(version: int) -> int:
    """Return the number of updates of a version.

    >>> update_count(version_after_restarts(7, 2))
    7
    """
    return version % _INCARNATION


def incarnation_of(version: int) -> int:
    """Return the incarnation of a version.

    >>> incarnation_of(version_after_restarts(7, 2))
    2
    """
    return version // _INCARNATION


def updates_between(newer: int, older: int) -> int:
    """Return the number of updates from ``older`` to ``newer``; across incarnations, the difference of their
    numbers of updates.

    >>> updates_between(7, 5)
    2
    >>> updates_between(version_after_restarts(7, 2), 5), updates_between(version_after_restarts(3, 2), 5)
    (2, 0)
    """
    return max(0, update_count(newer) - update_count(older))
