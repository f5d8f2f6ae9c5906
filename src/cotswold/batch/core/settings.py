"""What a coordinator is told once: how evaluations go, and how long it waits for whom.

Knows: limits, with their units. Does not know: who asks.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.batch.core.permutation import Dealing


@dataclass(frozen=True)
class Rules:
    """Of all evaluations of a run."""

    dealing: Dealing
    size: int
    """The length of the parameters."""
    pushes: bool = True
    """Whether sums go to the servers by themselves (Dean et al. 2012); otherwise workers keep them, and
    they are reduced at the end (Aberdeen et al. 2000)."""
    tree: bool = False
    """Whether sums are added along the tree over portions: every bit is the same whoever computed what."""
    prefetch: int = 1
    """How many portions wait at a worker beside the one that it computes, at least."""
    ahead_seconds: float = 0.1
    """A worker has as many portions in hand as take it this long: few messages where they are short."""
    copies: int = 2
    """How many workers have one of the last portions at most; 1 for no backup copies."""
    flush_seconds: float = 1.0
    """A worker pushes a sum that is as old, whichever way sums travel: a death costs no more."""
    deadline: float | None = None
    """An evaluation that may choose its portions ends after this many times the seconds that it should
    take with the workers' newest speeds, once `least` is done; None waits for all."""
    least: float = 0.5
    """The fraction of an evaluation's portions that a deadline waits for."""
    beat_seconds: float = 0.5
    silent_seconds: float = 10.0
    """After which a worker's portions are given to others, and its session is void."""
    retry_seconds: float = 2.0
    """After which what was not answered is sent again."""
    lonely_seconds: float = 60.0
    """After which an evaluation without workers is trouble."""
    deaths: int = 4
    """A portion is to blame where so many workers in a row died with it in hand, and no other died."""
    unsettled: int = 4
    """How many portions that a worker has pushed may wait for an answer before it is given no more."""
    settings: str = "{}"
    """JSON that workers are handed."""

    def __post_init__(self) -> None:
        if self.tree and not self.pushes:
            raise ValueError("sums along the tree go to the servers; they are not reduced")
        if self.deadline is not None and not self.deadline > 0:
            raise ValueError(f"a deadline of {self.deadline} times the usual; it must be above 0")
        if not 0 < self.least <= 1:
            raise ValueError(
                f"a deadline that waits for {self.least} of all; it must be above 0 and at most 1"
            )
        for name, least in (
            ("prefetch", 0),
            ("copies", 1),
            ("deaths", 1),
            ("unsettled", 1),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}, and must be at least {least}")
        if not self.ahead_seconds >= 0:
            raise ValueError(f"ahead_seconds is {self.ahead_seconds}, and must not be negative")
        for name in ("flush_seconds", "beat_seconds", "silent_seconds", "retry_seconds", "lonely_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, and must be above 0")
