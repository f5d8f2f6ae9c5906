"""How copies of buckets are kept.

Knows: how many must have what is acknowledged, by which way it comes to them, times. Does not know: who has
copies of what.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Way = Literal["star", "chain"]


@dataclass(frozen=True)
class Copying:
    """Those rules."""

    least: int = 1
    """With fewer members, the primary included, updates wait."""
    way: Way = "star"
    """`star`: a primary sends what is different to each of the others. `chain`: to the first secondary, which
    hands it on to the next, and so on; each tells the primary what it has."""
    window: int = 4
    """So many indexes may be under way before updates wait, and are applied together."""
    beat_seconds: float = 0.1
    """How often a primary speaks to those who have said all."""
    retry_seconds: float = 0.5
    """After which what was not answered is sent again, where answers usually take less than half of it."""
    silent_seconds: float = 0.5
    """After which a member, or the primary, is told to the controllers as silent."""
    direct_seconds: float = 5.0
    """For which a secondary to which a chain did not bring something in time is sent all by the primary."""
    saves: bool = False
    """Whether there is a disk."""
