"""What a coordinator is asked for, and what it answers with.

Knows: values. Does not know: how an evaluation goes (`evaluation`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cotswold.optim.vectors.base import Command
from cotswold.wire import Plan, SumName

Planner = Callable[[Sequence[str]], Plan]
"""The plan of a reduction over these workers."""


@dataclass(frozen=True)
class Request:
    """An evaluation that is wanted."""

    at: str
    gradient: str | None
    before: tuple[Command, ...] = ()
    after: tuple[Command, ...] = ()
    portions: tuple[int, ...] | None = None
    """Exactly these, ascending; None draws some for ``cycle``, of which a deadline may leave some out."""
    cycle: int = 0
    fraction: float = 1.0
    """Of what is drawn."""
    keeps: tuple[str, ...] = ()
    """Vectors that workers keep; without any they pull ``at``."""
    changed: tuple[str, ...] = ()
    """Those of them that are new since the evaluation before."""
    local: tuple[Command, ...] = ()
    """What makes ``at`` from them, once ``before`` has run on the shards."""


@dataclass(frozen=True)
class Account:
    """How an evaluation went."""

    seconds: float
    by_name: Mapping[str, int]
    """Portions that count, by the worker that computed them."""
    backups: int
    """Backup copies that were given."""
    backups_used: int
    """Of these, how many count."""
    refused: int
    """Sums that came too late."""
    lost: int
    """Portions that were given again because a session ended."""
    left_out: tuple[int, ...]
    """Portions that a deadline left out."""
    reductions: int
    """Attempts at a reduction."""


@dataclass(frozen=True)
class Counted:
    """An evaluation that is over."""

    evaluation: int
    dots: tuple[float, ...]
    """Of the commands that ran after it."""
    total: float
    """The sum of the values of all patterns that count: correctly rounded, so in no order."""
    details: Mapping[str, float]
    """Further sums, likewise."""
    portions: tuple[int, ...]
    """Those that count, ascending: each of their patterns once, all others never."""
    samples: int
    sums: Mapping[SumName, tuple[int, ...]]
    """The portions of each sum that was accepted."""
    account: Account


@dataclass(frozen=True)
class Trouble:
    """Why an evaluation does not go on; it does once workers come, and what is done stays done."""

    kind: str
    """``poisoned``, ``lonely`` or ``server``."""
    sentence: str
    portion: int | None = None


@dataclass(frozen=True)
class Event:
    """Something that is worth writing down."""

    kind: str
    """``joined``, ``lost``, ``left``, ``backup``, ``refused``, ``failed``, ``differs``, ``reducing``,
    ``aborted``, ``deadline``, ``epoch``, ``revived``, ``recalled``."""
    name: str
    """The worker or replica, or the server that is revived."""
    sentence: str = ""
    portions: tuple[int, ...] = ()
    places: tuple[tuple[int, int], ...] = ()
    """Of samples, as ranges."""
