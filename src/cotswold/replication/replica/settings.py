"""Settings of replication.

Knows: the number of members for a commit, the topology, times. Does not know: groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Way = Literal["star", "chain"]


@dataclass(frozen=True)
class Copying:
    """Settings of replication."""

    least: int = 1
    """With fewer members, the primary included, updates wait."""
    way: Way = "star"
    """`star`: the primary sends changes to each follower. `chain`: it sends them to the first secondary,
    which forwards them to the next, and so on; each follower reports its index to the primary."""
    window: int = 4
    """Number of uncommitted indexes from which on updates wait and are then applied together."""
    beat_seconds: float = 0.1
    """Interval of the primary's heartbeats to followers that are up to date."""
    retry_seconds: float = 0.5
    """Initial timeout of a reply; replies usually take less than half of it."""
    silent_seconds: float = 0.5
    """Seconds of silence after which a member, or the primary, is reported to the controllers."""
    direct_seconds: float = 5.0
    """Seconds for which the primary itself sends to a secondary that a chain reached too late."""
    saves: bool = False
    """True if there is a disk."""


def short_in_words(buckets: int, members: int, least: int) -> str:
    """Return why updates of some buckets wait, with the members of one of them; empty if none waits.

    >>> short_in_words(3, 1, 2)
    '3 buckets wait: one has 1 copy of at least 2 (server_copies_min, or --copies-min of its host)'
    >>> short_in_words(0, 0, 2)
    ''
    """
    if not buckets:
        return ""
    waits, whose = ("1 bucket waits", "it") if buckets == 1 else (f"{buckets} buckets wait", "one")
    copies = "1 copy" if members == 1 else f"{members} copies"
    wanted = f"{least} (server_copies_min, or --copies-min of its host)"
    return f"{waits}: {whose} has {copies} of at least {wanted}"
