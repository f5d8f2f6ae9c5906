"""What whoever operates a cluster, or is done with a run, wants of its controllers.

Knows: the fields. Does not know: who decides, how anything is shown.

Who leads the controllers answers, and the others say `NotLeading`. Whatever is wanted is said until it is
answered, and a second time it is the same.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Remove:
    """Nothing is to be left of a run, whose name nobody has again; answered by `Removed`."""

    run: str


@dataclass(frozen=True)
class Removed:
    """There is nothing of the run."""

    run: str


@dataclass(frozen=True)
class Forget:
    """A controller has no such run: a server drops whatever it has of it, in memory and on its disk."""

    epoch: int
    """Of the controller."""
    run: str
    cluster: str = ""
    """As in `Leased`."""


@dataclass(frozen=True)
class Drain:
    """A server is to have no copies; answered by `Draining`, and said until nothing is left."""

    server: str
    seconds: float
    """Within which: towards their end a bucket may have a copy less for a while."""
    is_lost: bool = False
    """Whether it never comes back, with whatever it alone had: counts where nothing is heard of it."""


@dataclass(frozen=True)
class Draining:
    """How far that is."""

    server: str
    left: int
    """Copies that the server has."""
    why: str
    """What is waited for, in a sentence."""


@dataclass(frozen=True)
class Undrain:
    """A server is to have copies again; answered by `Undrained`."""

    server: str


@dataclass(frozen=True)
class Undrained:
    """It may have some."""

    server: str


@dataclass(frozen=True)
class Look:
    """Somebody wants to see the cluster; answered by `Looked`."""

    bucket: str = ""
    """Events are those of this bucket alone."""
    number: int = 0
    """Of the question, by which its answer is known; 0 where nobody looks at that."""


@dataclass(frozen=True)
class ServerSeen:
    """One server."""

    name: str
    host: str
    address: str
    state: str
    """``living``, ``draining``, ``drained`` (an operator drained it: no copies, no process), ``gone``
    (nothing is heard of it) or ``ended``."""
    seconds: float
    """Since it was heard; -1 where it never was."""
    copies: int
    leads: int
    """Of how many of these it is the primary."""


@dataclass(frozen=True)
class RunSeen:
    """One run."""

    run: str
    buckets: int
    short: int
    """Those with fewer members than there are to be."""
    waiting: int
    """Those with so few that their updates wait."""
    name: str = ""
    """As people call it; empty where nobody has said so."""


@dataclass(frozen=True)
class BucketSeen:
    """A bucket that has too few copies."""

    bucket: str
    term: int
    members: tuple[str, ...]
    """The primary first."""
    learners: tuple[str, ...]
    why: str
    """What it waits for, in a sentence."""


@dataclass(frozen=True)
class EventSeen:
    """Something that has happened."""

    seconds: float
    """Ago."""
    kind: str
    name: str
    sentence: str
    run: str
    """Whose buckets it happened to, or which run it is about; empty for neither."""
    servers: tuple[tuple[str, int], ...]
    """To how many buckets of which server."""
    number: int = 0
    """Grows with the events of one controller process; 0 if it has none."""


@dataclass(frozen=True)
class Looked:
    """The cluster, as whoever leads the controllers sees it."""

    controller: str
    epoch: int
    copies: int
    """That a bucket is to have."""
    least: int
    """With fewer its updates wait."""
    servers: tuple[ServerSeen, ...]
    runs: tuple[RunSeen, ...]
    short: tuple[BucketSeen, ...]
    """The first of them, where there are many."""
    moving: int
    """Buckets of which a copy is being made, or the primary chosen."""
    events: tuple[EventSeen, ...]
    """The last, the oldest first."""
    refused: tuple[tuple[str, int], ...] = ()
    """Messages that this controller did not hear, since its process began: why, and how many."""
    process: int = 0
    """Its number on the controller's host; 0 where that is not said."""
    number: int = 0
    """Of the question."""
