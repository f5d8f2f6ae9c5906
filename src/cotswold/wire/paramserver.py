"""Asynchronous parameter updates: messages between a replica, its ranks, a server and the coordinator.

Knows: the fields. Does not know: update rules, the meaning of buffers, what a replica computes and when it
steps, which rank holds which shards.

Positions of samples are integers on one line: position p of epoch e of N samples is e · N + p. A *range* is
(start, stop). Each message may arrive late, twice or never. (session, number) identifies an update. A pull
requests shards newer than the versions that it names. A coordinator state is identified by its number.

A replica joins by `Join` and may `Leave`. `SessionExpired` and `Shutdown` end its session, as they end a
worker's. The rank that leads the exchange with the servers decides which messages are due and sends them
without buffers. Each other rank adds its own buffers and sends its own messages.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.wire.types import Shard

Ranges = tuple[tuple[int, int], ...]
"""Positions of samples: (start, stop) of each range, ascending and disjoint."""


@dataclass(frozen=True)
class Update:
    """The accumulated steps of a replica for shards of one server; answered by `Applied` or `UpdateRefused`,
    and repeated until then. Without shards it carries only the replica's checkpoint marker. If the marker was
    sent before, it says that no update will be computed from the last pull."""

    run: str
    """Name of the run, or resumed run, to update."""
    session: int
    number: int
    """Sequence number 1, 2, 3, ... of each (session, server): the next is sent after the reply to this
    one."""
    kind: str
    """``gradient``, ``delta``, or ``factors`` (a gradient with some shards as factors)."""
    shards: tuple[int, ...]
    versions: tuple[int, ...]
    """Version of each shard that the update was computed from; the oldest if several steps are
    accumulated."""
    rate: int
    """Version of the learning rate; ignored for deltas."""
    scale: float
    """Factor of the whole update."""
    samples: Ranges
    checkpoint: int
    """Newest checkpoint that the replica knew when it computed the update: only later checkpoints include
    it."""
    examples: tuple[int, ...]
    """For ``factors``: number of examples of each shard's factors, 0 for a plain gradient. Empty for other
    kinds."""
    buffers: tuple[object, ...]
    """One buffer per shard: gradient, delta, or errors (examples, rows). For ``factors`` then the activations
    (examples, columns) of each tensor with factors, in the order of its first shard."""
    decay: float = 0.0
    """Weight decay to add to gradients from factors when they are multiplied; plain gradients already include
    it."""
    rank: int = 0
    """Rank in the replica that sends it."""
    ranks: tuple[int, ...] = ()
    """Ranks that each send a part of this update; empty if it is whole."""


@dataclass(frozen=True)
class Applied:
    """The update is applied to the shards."""

    session: int
    server: str
    number: int
    shards: tuple[int, ...]
    versions: tuple[int, ...]
    """Versions after the update; a pull of these versions includes it."""
    queued_bytes: int
    """Bytes of queued updates on this server."""


@dataclass(frozen=True)
class UpdateRefused:
    """The update is applied to no shard."""

    session: int
    server: str
    number: int
    reason: str
    """One sentence for people."""
    is_retryable: bool
    """True if the same update may be sent again because the queue was full. Otherwise its number is used up,
    unless it was not the number that was due."""
    code: str = ""
    """The kind of reason, a short word: ``session``, ``run``, ``expects``, ``stale``, ``busy``, ..."""


@dataclass(frozen=True)
class PullNewer:
    """Request shards newer than the given versions; answered by `PulledNewer` at once."""

    run: str
    session: int
    """Session; 0 for a client that sends no updates."""
    number: int
    """Number of the update that will be computed from this pull, if all earlier updates are answered by all
    servers, markers aside: one more than the newest that is not a marker. Otherwise 0."""
    shards: tuple[int, ...]
    versions: tuple[int, ...]
    """Known version of each shard; -1 for none."""


@dataclass(frozen=True)
class PulledNewer:
    """The requested shards that are newer."""

    session: int
    server: str
    number: int
    """Number of the pull."""
    shards: tuple[int, ...]
    versions: tuple[int, ...]
    buffers: tuple[object, ...]
    error: str | None = None


@dataclass(frozen=True)
class CoordinatorState:
    """The coordinator's state for a server; answered by `CoordinatorStateAck` each time it arrives."""

    number: int
    """Sequence number; the next state is sent after all servers have acknowledged this one."""
    sessions: tuple[tuple[int, str], ...]
    """(session, name) of all live sessions; the others end now and send nothing more."""
    rates: tuple[tuple[int, float], ...]
    """(version, learning rate)."""
    checkpoint: int
    """Newest checkpoint that was started; 0 for none."""
    settled_below: int
    """Position below which all samples are settled and need no report."""
    released_checkpoint: int = 0
    """Newest checkpoint whose state the coordinator has; servers may drop it."""
    settled_above: Ranges = ()
    """Settled positions above ``settled_below``."""
    recorded: Ranges = ()
    """Positions that the coordinator has already recorded as counted, torn or refused; acknowledgements omit
    them."""
    incarnations: tuple[tuple[str, int], ...] = ()
    """Incarnation of each server that the coordinator knows, if not 0. A server in a later incarnation omits
    nothing from its acknowledgement."""
    recorded_at_checkpoint: Ranges = ()
    """Positions that were recorded when the checkpoint began: the servers' states of the checkpoint omit
    them. They are the same in all states of a checkpoint, because servers may learn of it from different
    ones."""

    @property
    def settled(self) -> Ranges:
        """All positions whose samples are settled."""
        return (*(((0, self.settled_below),) if self.settled_below else ()), *self.settled_above)


@dataclass(frozen=True)
class CoordinatorStateAck:
    """The server has applied the coordinator's state."""

    number: int
    server: str
    samples: tuple[tuple[int, Ranges, Ranges], ...]
    """(session, applied here, permanently refused) of sessions that are live or ended with this state."""
    frozen: int
    """Newest checkpoint whose state this server has kept."""
    queued_bytes: int
    """Bytes of queued updates."""
    checkpoint_samples: tuple[tuple[int, Ranges, Ranges], ...] = ()
    """(session, applied, permanently refused) in that checkpoint's state; empty once the coordinator has
    it."""
    earlier_sessions: tuple[tuple[int, Ranges], ...] = ()
    """(session, applied here and not settled) of sessions that ended with an earlier state."""
    incarnation: int = 0
    """Incarnation; it grows when the server loses its memory and restarts from its disk."""
    restored: int = 0
    """Newest coordinator state that the disk knew when this incarnation began."""
    durable_state: int | None = None
    """Newest coordinator state whose acknowledged facts are all on a disk; None without a disk."""


@dataclass(frozen=True)
class PullFrozen:
    """The coordinator requests shards at a checkpoint; answered by `FrozenPart`."""

    checkpoint: int
    name: str
    """The weights, or a state vector of the update rule."""
    shards: tuple[int, ...]


@dataclass(frozen=True)
class FrozenPart:
    """Shards of a vector at a checkpoint."""

    server: str
    checkpoint: int
    name: str
    shards: tuple[int, ...]
    versions: tuple[int, ...]
    """Number of updates applied to each shard."""
    buffers: tuple[object, ...]
    error: str | None = None


@dataclass(frozen=True)
class SessionOpened:
    """A replica's session begins; every server knows the session."""

    name: str
    attempt: int
    session: int
    run: str
    shards: tuple[Shard, ...]
    servers: tuple[tuple[str, str], ...]
    """(name, address) of each server."""
    beat_seconds: float
    retry_seconds: float
    settings: str
    """Settings of the replica's process, as JSON."""


@dataclass(frozen=True)
class ReplicaHeartbeat:
    """Heartbeat of a replica, with the work that it still has; answered by `ReplicaInstructions`."""

    session: int
    assignment: int
    """Number of the newest assignment that the replica has received."""
    remaining_samples: int
    """Samples of its assignments that no step has processed yet."""


@dataclass(frozen=True)
class ReplicaInstructions:
    """Instructions for a replica, valid until the next ones."""

    session: int
    assignments: tuple[tuple[int, int, int], ...]
    """(number, start, stop): assigned samples, for each assignment newer than the one that the heartbeat
    named."""
    rate: int
    """Version of the learning rate."""
    rate_value: float
    checkpoint: int
    """Number of the newest checkpoint that was started: its marker is due."""
    exclusive: tuple[int, ...] = ()
    """Numbers of assignments that some servers have applied. A push holds samples of one of these
    assignments, or of none."""


@dataclass(frozen=True)
class PullPart:
    """Send this pull to a server; answered by `PulledPart`."""

    server: str
    pull: PullNewer


@dataclass(frozen=True)
class PulledPart:
    """A rank has received the shards of a server's reply; the reply follows without its buffers."""

    server: str
    pulled: PulledNewer


@dataclass(frozen=True)
class PushPart:
    """Send this part of an update to a server, with the numbers of an accumulation; the server replies to the
    leading rank."""

    server: str
    accumulation: int
    """Number of the accumulation; all ranks count accumulations alike, in the order in which they close."""
    update: Update
