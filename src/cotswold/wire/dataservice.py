"""Between trainers, data servers and the head of their pool.

Knows: the fields. Does not know: what a sample is, what servers are asked to do with it.

A request names samples by their rows in a split and says which *view* of them is wanted: the split, how it
is varied, the window. What becomes of it depends on these alone, so any server may answer any request, and
answer it twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.wire.of_updates import Ranges

POOL = "pool"
"""The name of the head, to which trainers and data servers send."""


@dataclass(frozen=True)
class Offer:
    """A data server lives, and serves a store; it says so in every beat."""

    name: str
    address: str
    terms: str
    """JSON: what it serves. All servers of a pool say the same."""
    supplied: int
    """Samples so far."""
    seconds: float
    """In which its threads made them, all together."""
    hits: int
    """Samples that were found in its cache."""
    misses: int
    cached_bytes: int
    cached_bytes_most: int
    """The most that the cache ever had."""
    waiting: int
    """Requests that wait."""
    batches: int = 0
    """So far, in which those samples were sent."""
    sent_bytes: int = 0
    """Of those batches."""


@dataclass(frozen=True)
class Attend:
    """A trainer is there; it says so in every beat. Answered by `Roster` where that has changed."""

    name: str
    address: str
    store: str
    """The identity of the store that it wants; empty for any."""
    version: int
    """The newest `Roster` that it has; 0 for none."""
    handed: int = 0
    """Samples that its loop has got."""
    waited: float = 0.0
    """Seconds that its loop has waited for them."""


@dataclass(frozen=True)
class Roster:
    """The data servers that are there."""

    pool: str
    """A name by chance that no other pool has had."""
    version: int
    servers: tuple[tuple[str, str], ...]
    """Names and addresses."""
    terms: str
    """JSON: what they serve; empty as long as nobody has said so."""
    why: str = ""
    """Why the trainer is turned away; empty where it is not."""


@dataclass(frozen=True)
class Depart:
    """A trainer or a data server goes."""

    name: str


@dataclass(frozen=True)
class Ask:
    """A trainer wants a batch, or several of as many samples; answered by `Supplied` or `Unsupplied`."""

    number: int
    """1, 2, 3, ... of this trainer's requests."""
    view: str
    """JSON: which view of the samples."""
    epoch: int
    samples: int
    """Of all."""
    buffers: tuple[object, ...]
    """One: the rows, int64, of one batch after the other."""
    batches: int = 1


@dataclass(frozen=True)
class Cancel:
    """A trainer does not want these any more."""

    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Supplied:
    """What was asked for."""

    server: str
    number: int
    shape: tuple[int, ...]
    """(y, x, channel, image) of each batch, float32."""
    targets: tuple[int, ...]
    """Of each batch: (image,) for classes, int64; (image, number) for numbers to predict, float32."""
    buffers: tuple[object, ...]
    """Samples and labels, of one batch after the other."""
    batches: int = 1


@dataclass(frozen=True)
class Unsupplied:
    """A data server does not answer a request."""

    server: str
    number: int
    why: str
    """Why not; empty where it has too much to do."""


@dataclass(frozen=True)
class Pending:
    """A data server was asked again for what it has, and has not made yet: it lives."""

    server: str
    number: int


@dataclass(frozen=True)
class Draw:
    """A trainer draws an epoch together with others: everything that it wants and has done there.

    It says so in every beat, and when something has changed. Answered by `Dealt`.
    """

    name: str
    pool: str
    """Of the `Roster`; another pool does not answer."""
    stream: str
    """The name under which trainers share."""
    what: tuple[tuple[str, str], ...]
    """What is drawn, in which order: names and values. All trainers of a stream say the same."""
    samples: int
    """That an epoch has."""
    at_least_once: bool
    epoch: int
    """-1 for the one that is on."""
    session: int
    """1, 2, 3, ... of this trainer's passes."""
    number: int
    """1, 2, 3, ... of this session's messages; what is older than one that came is dropped."""
    want: int
    """Samples of a batch, at most."""
    most: int
    """Batches that it has at a time."""
    take: Ranges
    """Batches that it is about to hand to its loop."""
    handed: Ranges
    """Batches that its loop has had, of which no answer came yet."""
    leaves: bool
    """Whether its pass is at its end: everything that it has had is in ``handed``, now or before."""


@dataclass(frozen=True)
class Dealt:
    """What a trainer has of an epoch that is shared."""

    stream: str
    session: int
    number: int
    """1, 2, 3, ... of the answers to this session."""
    heard: int
    """The newest `Draw` that was heard."""
    epoch: int
    batches: Ranges
    """All that it was dealt, and has not handed to its loop, in order."""
    taken: Ranges
    """Of these, those that no other trainer gets any more."""
    is_over: bool
    """Whether nothing more is dealt in this epoch."""
    is_ended: bool
    """Whether the session has ended: it has left, or was taken for dead."""
    why: str = ""
    """Why nothing is dealt to it; empty where it is."""
