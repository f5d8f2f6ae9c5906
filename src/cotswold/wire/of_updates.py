"""Asynchronous updates of the parameters: between a replica and a server, and the coordinator's part in it.

Knows: the fields. Does not know: rules, what a buffer holds, when a replica steps.

Places of samples are whole numbers on one line: place p of epoch e of N samples is e · N + p. A *range* is
(start, stop). Each message may come late, twice or never: an update is known by (session, number), a pull
asks for what is newer than the versions that it names, and an order for what its number says.
"""

from __future__ import annotations

from dataclasses import dataclass

Ranges = tuple[tuple[int, int], ...]
"""Places of samples: (start, stop) of each run, ascending and apart."""


@dataclass(frozen=True)
class Update:
    """What a replica's newest steps come to, for shards of one server; answered by `Applied` or
    `UpdateRefused`, and sent again until it is. Without shards it carries its checkpoint's marker alone, or,
    where that was sent before, says that nothing is computed from what was pulled."""

    run: str
    """The run, or the resumed run, that it is meant for."""
    session: int
    number: int
    """1, 2, 3, ... for each (session, server): the next is sent once this one is answered."""
    kind: str
    """``gradient``, ``delta``, or ``factors``: a gradient of which some shards come as factors."""
    shards: tuple[int, ...]
    versions: tuple[int, ...]
    """The version of each shard that it was computed from, the oldest where several steps are in it."""
    rate: int
    """The version of the learning rate; of no meaning for deltas."""
    scale: float
    """What all of it is multiplied by."""
    samples: Ranges
    checkpoint: int
    """The newest checkpoint that the replica had heard of when it made this: it is in later ones alone."""
    examples: tuple[int, ...]
    """Of factors: how many examples those of each shard have, 0 where its gradient comes as it is; empty
    for other kinds."""
    buffers: tuple[object, ...]
    """One a shard: gradient, delta, or errors (examples, rows). Then, of factors, the activations (examples,
    columns) of each tensor that comes so, in the order of its first shard."""
    decay: float = 0.0
    """So much of the weights is added to the gradients that come as factors, when they are multiplied; who
    pushes the others has done so."""
    part: int = 0
    """The rank of the replica that sends it."""
    parts: tuple[int, ...] = ()
    """The ranks of which each sends such a part of this update; empty where it is whole."""


@dataclass(frozen=True)
class Applied:
    """The update is in the shards."""

    session: int
    server: str
    number: int
    shards: tuple[int, ...]
    versions: tuple[int, ...]
    """After it; a pull of these has it."""
    waiting: int
    """Bytes of updates that wait on this server."""


@dataclass(frozen=True)
class UpdateRefused:
    """The update is in no shard."""

    session: int
    server: str
    number: int
    reason: str
    """One sentence; its first word or words say which kind it is."""
    again: bool
    """Whether the same update may be sent again, for there was no room; otherwise its number is used up,
    unless it was not the number that was due."""


@dataclass(frozen=True)
class PullNewer:
    """Shards that are newer than what is known are wanted; answered by `PulledNewer` at once."""

    run: str
    session: int
    """0 for whoever will send no update."""
    number: int
    """For an update that will be computed from it, if all before are answered everywhere, markers aside: one
    more than the number of the newest that was no marker; otherwise 0."""
    shards: tuple[int, ...]
    versions: tuple[int, ...]
    """Of each, what is known; -1 for nothing."""


@dataclass(frozen=True)
class PulledNewer:
    """The newer ones of the shards that were asked for."""

    session: int
    server: str
    number: int
    """Of the pull."""
    shards: tuple[int, ...]
    versions: tuple[int, ...]
    buffers: tuple[object, ...]
    error: str | None = None


@dataclass(frozen=True)
class Order:
    """What a server is to know from here on; answered by `Ordered`, however often it comes."""

    number: int
    """Grows by one; the next is given once all servers have answered."""
    sessions: tuple[tuple[int, str], ...]
    """All that live, with their names: others end now, and send no more."""
    rates: tuple[tuple[int, float], ...]
    """Learning rates by version."""
    checkpoint: int
    """The newest that was begun; 0 for none."""
    settled: int
    """Samples at places below this are wanted no more."""
    taken: int = 0
    """The newest checkpoint whose state the coordinator has, so that nobody need keep it."""
    closed: Ranges = ()
    """Places above ``settled`` whose samples are wanted no more either."""
    known: Ranges = ()
    """Places whose samples are counted, torn or refused for the coordinator: answers leave them out."""
    lives: tuple[tuple[str, int], ...] = ()
    """The life of each server that the coordinator knows, if it is not 0. A server in a later life leaves
    nothing out of its answer."""
    cut: Ranges = ()
    """Places that were known when the checkpoint began: the states that servers keep of it leave these out.
    It is the same in all orders of a checkpoint, for servers may hear of it by different orders."""

    @property
    def forgotten(self) -> Ranges:
        """All places whose samples are wanted no more."""
        return (*(((0, self.settled),) if self.settled else ()), *self.closed)


@dataclass(frozen=True)
class Ordered:
    """The order is obeyed."""

    number: int
    server: str
    samples: tuple[tuple[int, Ranges, Ranges], ...]
    """(session, what is applied here, what was refused for ever), of those that live or ended with this
    order."""
    frozen: int
    """The newest checkpoint whose state this server has kept."""
    waiting: int
    """Bytes of updates that wait."""
    cut: tuple[tuple[int, Ranges, Ranges], ...] = ()
    """(session, applied, refused for ever), as that state has it; nothing once it was taken."""
    past: tuple[tuple[int, Ranges], ...] = ()
    """(session, what is applied here), of those that ended with an order before, and is not settled."""
    life: int = 0
    """Greater than before where what is here was lost, but for what a disk had."""
    restored: int = 0
    """The newest order that the disk knew with which this life began."""
    saved: int | None = None
    """The newest order of which a disk has all that was said in answer; None where no disk is waited for."""


@dataclass(frozen=True)
class PullFrozen:
    """The coordinator wants shards as a checkpoint has them; answered by `FrozenPart`."""

    checkpoint: int
    name: str
    """The weights, or a vector that the rule keeps."""
    shards: tuple[int, ...]


@dataclass(frozen=True)
class FrozenPart:
    """Shards of a vector at a checkpoint."""

    server: str
    checkpoint: int
    name: str
    shards: tuple[int, ...]
    versions: tuple[int, ...]
    """How many updates each had had."""
    buffers: tuple[object, ...]
    error: str | None = None
