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

Enclosed = (
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
    life: int = 0
    """The last term in which the bucket was recovered from a disk without its newest changes; 0 for never."""

    @property
    def members(self) -> tuple[str, ...]:
        """The primary and its secondaries: each has all acknowledged changes."""
        return (self.primary, *self.secondaries)

    @property
    def everybody(self) -> tuple[str, ...]:
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
    missed: Ranges
    checkpoint: int
    marked: int
    worked: int


@dataclass(frozen=True)
class FrozenState:
    """A checkpoint's state of a bucket, without numbers."""

    checkpoint: int
    versions: tuple[int, ...]
    samples: tuple[tuple[int, Ranges, Ranges], ...]
    is_now: bool
    """True if its numbers equal those of the bucket after this change; otherwise they are sent along."""


@dataclass(frozen=True)
class Change:
    """The difference of a bucket since an index; its complete state since -1."""

    shards: tuple[int, ...]
    versions: tuple[int, ...]
    sessions: tuple[SessionState, ...]
    """The sessions that changed."""
    living: tuple[int, ...]
    """Numbers of all live sessions."""
    ended: tuple[int, ...]
    """Numbers of the sessions that ended with the newest coordinator state."""
    gone: tuple[int, ...]
    """Numbers of the sessions that ended since the start of a checkpoint that is not frozen yet."""
    past: tuple[int, ...]
    """Numbers of the sessions that ended earlier and have samples that are not settled."""
    void: int
    """Sessions up to this number belong to an earlier incarnation and push nothing more."""
    restored: int
    """Newest coordinator state that the disk knew when the bucket's incarnation began."""
    order: CoordinatorState | None
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
    after: int
    """Index on which the change is based; -1 for the complete state."""
    index: int
    """Index of the bucket after the change."""
    committed: int
    """Greatest index that all members have prepared."""
    change: Change | None
    """None if nothing changed and only ``committed`` is sent."""
    names: tuple[str, ...] = ()
    """Names of the vectors whose numbers are sent."""
    buffers: tuple[object, ...] = ()
    """For each vector, its shards in the order of ``change.shards``; one buffer per vector if they are
    contiguous. Then the numbers of all shards of a frozen state whose ``is_now`` is False."""
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
    is_lacking: bool
    """True if a change was rejected because it starts above this index."""
    saved: int = -1
    """Index up to which the state is on the member's disk; -1 for none."""


@dataclass(frozen=True)
class Fence:
    """A controller holds an election: the receiver rejects all lower terms; answered by `FenceReply`."""

    epoch: int
    """Epoch of the controller."""
    bucket: str
    term: int
    """The next term."""


@dataclass(frozen=True)
class Fenced:
    """A server's state of a bucket; the server rejects all lower terms."""

    bucket: str
    term: int
    """Term of the fence."""
    server: str
    of_term: int
    """Newest term in which the server knew itself to be a member."""
    index: int
    """Greatest prepared index; -1 if it has no valid state."""


@dataclass(frozen=True)
class FindSaved:
    """All members of a bucket are lost: request a server's state of it on disk; answered by `DiskStateReply`
    after that state is read and verified."""

    epoch: int
    """Epoch of the controller."""
    bucket: str


@dataclass(frozen=True)
class FoundSaved:
    """A server's state of a bucket on disk. The greatest recency (incarnation, term, index) has lost the
    least."""

    bucket: str
    server: str
    life: int
    term: int
    """Term in which it was saved."""
    index: int
    """Saved index; -1 if there is no valid state."""
    members: tuple[str, ...] = ()
    """Servers of the newest group that the replica knew; each of them may have a newer state."""


@dataclass(frozen=True)
class Elsewhere:
    """The server is not the primary of the bucket; the client asks the primary or a controller."""

    bucket: str
    term: int
    """Newest term that the server knows."""
    primary: str
    """Primary of that term; empty if unknown."""


@dataclass(frozen=True)
class Caught:
    """A learner has caught up with the primary, which now commits nothing without it."""

    bucket: str
    term: int
    server: str
    """Name of the primary."""
    learner: str


@dataclass(frozen=True)
class Silent:
    """A primary receives nothing from a replica."""

    bucket: str
    term: int
    server: str
    """Name of the primary."""
    copy: str


@dataclass(frozen=True)
class TakeOver:
    """A secondary receives nothing from the primary and asks to replace it."""

    bucket: str
    term: int
    server: str
    """Name of the secondary."""
    primary: str


@dataclass(frozen=True)
class Assign:
    """A controller sets the group of a bucket; answered by `Assigned`."""

    epoch: int
    """Epoch of the controller; a controller with a lower epoch than one already seen is no longer the
    leader."""
    group: Group
    number: int = 0
    """Number of a liveness probe; 0 for none."""


@dataclass(frozen=True)
class Assigned:
    """The server has adopted the group."""

    bucket: str
    term: int
    server: str
    number: int = 0
    """Number of the liveness probe."""


@dataclass(frozen=True)
class Here:
    """Heartbeat of a server and request for a lease; answered by `LeaseGrant`."""

    server: str
    host: str
    """Host of the server; replicas of a bucket go to different hosts if possible."""
    address: str
    number: int
    """Number of the requested lease."""
    leads: tuple[tuple[str, int], ...] | None
    """(bucket, term) of the buckets for which it acts as the primary; None if they equal those last sent with
    the same ``claims``."""
    fenced: tuple[tuple[str, int], ...] = ()
    """(bucket, term) of the buckets for which it rejects lower terms and does not know the group of that
    term."""
    peer_address: str = ""
    """Address for other servers; empty if equal to ``address``."""
    runs: tuple[str, ...] = ()
    """Runs of its replicas, in memory or on disk."""
    claims: int = 0
    """Version of ``leads``; it differs whenever ``leads`` differs."""
    cluster: str = ""
    """Name of the cluster whose runs it holds; empty if it holds none."""
    answered: int = 0
    """Number of the newest `LeaseGrant` that it has received."""
    key: str = ""
    """Secret from the supervisor, known to controllers; empty for none."""


@dataclass(frozen=True)
class Leased:
    """Grant of a requested lease, which begins at the time of the request."""

    epoch: int
    server: str
    number: int
    seconds: float
    """Duration of the lease; 0 if the server must first send the buckets that it leads."""
    cluster: str = ""
    """Name of the controllers' cluster; a server with data belongs to the cluster that assigned them."""


@dataclass(frozen=True)
class NotLeading:
    """The controller is not the leader."""

    epoch: int
    leader: str
    """Name of the leader, if known; else empty."""


@dataclass(frozen=True)
class Ended:
    """A supervisor has seen a server process exit; the server holds no lease any more."""

    server: str
    why: str
    key: str = ""
    """Key of the server, which authenticates its supervisor."""


@dataclass(frozen=True)
class Create:
    """A coordinator requests buckets for a run, and repeats this until `LookupReply` lists them."""

    run: str
    description: str
    """Description of the run that servers need to hold its buckets."""
    buckets: tuple[str, ...]
    servers: int
    """Number of live servers required before the buckets are created."""


@dataclass(frozen=True)
class Describe:
    """A server needs the description of a run to hold one of its buckets; answered by `RunDescription`."""

    run: str
    number: int = 0
    """Number of the request, repeated in the reply; 0 if the sender ignores it."""


@dataclass(frozen=True)
class Described:
    """The description of a run; empty if unknown."""

    run: str
    description: str
    number: int = 0
    """Number of the request."""
    drained: tuple[str, ...] = ()
    """For a supervisor's request without a run: drained servers of its host that have no replicas left."""


@dataclass(frozen=True)
class OfBucket:
    """A client's message to a bucket, or the bucket's reply."""

    bucket: str
    term: int
    """Newest term of the bucket that the sender knows."""
    message: Enclosed


@dataclass(frozen=True)
class Find:
    """A client requests the groups of buckets; answered by `LookupReply`."""

    terms: tuple[tuple[str, int], ...]
    """(bucket, newest term that the client knows); buckets that are not named are all requested."""
    lost: tuple[str, ...] = ()
    """Servers whose connection the client has lost; they may have a new address, for example after a token
    rotation."""
    number: int = 0
    """Number of the request, repeated in the reply; 0 if the sender ignores it."""


@dataclass(frozen=True)
class Found:
    """The newer groups and the addresses of their primaries."""

    groups: tuple[Group, ...]
    addresses: tuple[tuple[str, str], ...]
    """(server, address)."""
    number: int = 0
    """Number of the request."""
