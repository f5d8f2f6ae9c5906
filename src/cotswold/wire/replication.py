"""Replication of a bucket: messages between its primary, its secondaries, clients and the controllers.

Knows: the fields. Does not know: the contents of shards, elections.

A *bucket* is a set of shards with one primary at a time. An *index* counts its changes. A *group* lists the
servers of a bucket; its *term* grows with every change of the group. Each message names a bucket and a term,
so messages of older terms are recognized. Source: Chilimbi et al. 2014, section 3.3.3.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.wire.batch_vectors import Pull, Pulled, Write, WriteAck
from cotswold.wire.paramserver import (
    Applied,
    CoordinatorState,
    CoordinatorStateAck,
    FrozenPart,
    PulledNewer,
    PullFrozen,
    PullNewer,
    Ranges,
    Update,
    UpdateRefused,
)

BucketMessage = (
    Update
    | PullNewer
    | CoordinatorState
    | PullFrozen
    | Pull
    | Write
    | Applied
    | UpdateRefused
    | PulledNewer
    | CoordinatorStateAck
    | FrozenPart
    | Pulled
    | WriteAck
)
"""Messages between clients and servers about shards."""


@dataclass(frozen=True)
class Group:
    """The servers of a bucket in a term."""

    bucket: str
    term: int
    primary: str
    secondaries: tuple[str, ...] = ()
    """Secondaries: each has prepared all acknowledged changes."""
    learners: tuple[str, ...] = ()
    """Servers that become secondaries once they have caught up with the primary."""
    incarnation: int = 0
    """The last term in which the bucket was recovered from a disk without its newest changes; 0 for never."""

    @property
    def members(self) -> tuple[str, ...]:
        """The primary and its secondaries: each has all acknowledged changes."""
        return (self.primary, *self.secondaries)

    @property
    def all_servers(self) -> tuple[str, ...]:
        """The members and the learners."""
        return (*self.members, *self.learners)


@dataclass(frozen=True)
class SessionState:
    """Replicated state of a session: enough to apply each of its updates once."""

    number: int
    name: str
    last: int
    """Number of its newest answered update; the client sends the following ones again."""
    applied: Applied | None
    """The reply to it, if it was applied."""
    refused: UpdateRefused | None
    """The reply to it, if it was refused."""
    samples: Ranges
    refused_samples: Ranges
    checkpoint: int
    sent_marker: int
    last_computed: int


@dataclass(frozen=True)
class FrozenState:
    """A checkpoint's state of a bucket, without numbers."""

    checkpoint: int
    versions: tuple[int, ...]
    samples: tuple[tuple[int, Ranges, Ranges], ...]
    is_current: bool
    """True if its numbers equal those of the bucket after this change; otherwise they are sent along."""


@dataclass(frozen=True)
class BucketChange:
    """The difference of a bucket since an index; its complete state since -1."""

    shards: tuple[int, ...]
    versions: tuple[int, ...]
    sessions: tuple[SessionState, ...]
    """The sessions that changed."""
    live: tuple[int, ...]
    """Numbers of all live sessions."""
    ended: tuple[int, ...]
    """Numbers of the sessions that ended with the newest coordinator state."""
    ended_since_checkpoint: tuple[int, ...]
    """Numbers of the sessions that ended since the start of a checkpoint that is not frozen yet."""
    ended_earlier: tuple[int, ...]
    """Numbers of the sessions that ended earlier and have samples that are not settled."""
    void_sessions: int
    """Sessions up to this number belong to an earlier incarnation and push nothing more."""
    restored: int
    """Newest coordinator state that the disk knew when the bucket's incarnation began."""
    coordinator_state: CoordinatorState | None
    """The newest coordinator state, if it changed."""
    frozen: FrozenState | None
    """The newest frozen state, if it exists and changed."""
    checkpoint: int
    """Number of the newest frozen checkpoint."""


@dataclass(frozen=True)
class Prepare:
    """The primary asks a replica to keep a change until it is committed; answered by `Prepared`."""

    bucket: str
    term: int
    base_index: int
    """Index on which the change is based; -1 for the complete state."""
    index: int
    """Index of the bucket after the change."""
    committed: int
    """Greatest index that all members have prepared."""
    change: BucketChange | None
    """None if nothing changed and only ``committed`` is sent."""
    names: tuple[str, ...] = ()
    """Names of the vectors whose numbers are sent."""
    buffers: tuple[object, ...] = ()
    """For each vector, its shards in the order of ``change.shards``; one buffer per vector if they are
    contiguous. Then the numbers of all shards of a frozen state whose ``is_current`` is False."""
    onward: tuple[str, ...] = ()
    """Servers to forward to: to the first of them, with the rest."""


@dataclass(frozen=True)
class Prepared:
    """A member has everything up to this index in memory."""

    bucket: str
    term: int
    server: str
    index: int
    """Prepared index; -1 if it has no valid state."""
    is_behind: bool
    """True if a change was rejected because it starts above this index."""
    durable_index: int = -1
    """Index up to which the state is on the member's disk; -1 for none."""


@dataclass(frozen=True)
class NotPrimary:
    """The server is not the primary of the bucket; the client asks the primary or a controller."""

    bucket: str
    term: int
    """Newest term that the server knows."""
    primary: str
    """Primary of that term; empty if unknown."""


@dataclass(frozen=True)
class BucketEnvelope:
    """A client's message to a bucket, or the bucket's reply."""

    bucket: str
    term: int
    """Newest term of the bucket that the sender knows."""
    message: BucketMessage
