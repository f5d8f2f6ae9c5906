"""How buckets are controlled: numbers of copies, and times.

Knows: numbers. Does not know: what is done by them.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.words import counted

MOST_COPIES = 5


@dataclass(frozen=True)
class Control:
    """How buckets are controlled."""

    copies: int = 3
    """Of each bucket, the primary included; fewer while there are fewer servers."""
    lease_seconds: float = 1.0
    beat_seconds: float = 0.25
    """How often a leader says that it leads."""
    leader_seconds: float = 1.0
    """After which another may lead."""
    retry_seconds: float = 0.25
    fence_seconds: float = 0.06
    """After which whoever is to say what it has is asked again: a message that is lost costs no copy."""
    election_seconds: float = 0.2
    """After which an election does without those who say nothing."""
    judging_seconds: float = 0.2
    """For which complaints are gathered, before it is judged who is to blame."""
    still_seconds: float = 0.25
    """A leader that did nothing for so long has heard nobody meanwhile, and judges nobody by it."""
    avoid_seconds: float = 10.0
    """For which a server gets no copy of a bucket again, after it was silent to its primary."""
    again_seconds: float = 1.0
    """The same, where no other server is free and the bucket has too few members, or one alone."""
    disk_seconds: float = 3.0
    """After which a bucket whose members have all ended does without the disks that are not there, if one
    that is was written to in its newest term."""
    revive_seconds: float = 30.0
    """The same, if none was."""
    recover_seconds: float = 60.0
    """The same where the controllers' state was made from disks, which name others that may have more."""
    least: int = 1
    """Members without which updates wait, as servers are told too; a server that is drained leaves them."""
    moves: int = 4
    """So many copies may be on their way to servers that have fewer; four times as many from one that is
    drained."""
    handover_seconds: float = 0.5
    """How often another primary is chosen so that all lead as many, at most."""
    settle_seconds: float = 1.0
    """After a server came or went, before a copy is moved."""
    calm_seconds: float = 5.0
    """After that and the last move, before another primary is chosen."""
    forget_seconds: float = 600.0
    """After which a server of which nothing is heard, and that has no copies, is shown no more."""

    def __post_init__(self) -> None:
        if not 1 <= self.copies <= MOST_COPIES:
            raise ValueError(f"{self.copies} copies; a bucket has 1 to {MOST_COPIES}")
        if not 1 <= self.least <= self.copies:
            raise ValueError(
                f"at least {self.least} of {counted(self.copies, 'copy')}; name 1 to {self.copies}"
            )
