"""Messages between the controllers and their servers, supervisors and clients.

Knows: the fields. Does not know: elections, placement.

A *group* lists the servers of a bucket; its *term* grows with every change of the group. Each message about a
bucket names its term, so messages of older terms are recognized. The *epoch* of a controller grows with every
change of the leader.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.wire.replication import Group


@dataclass(frozen=True)
class Fence:
    """A controller holds an election: the receiver rejects all lower terms; answered by `FenceReply`."""

    epoch: int
    """Epoch of the controller."""
    bucket: str
    term: int
    """The next term."""


@dataclass(frozen=True)
class FenceReply:
    """A server's state of a bucket; the server rejects all lower terms."""

    bucket: str
    term: int
    """Term of the fence."""
    server: str
    member_term: int
    """Newest term in which the server knew itself to be a member."""
    index: int
    """Greatest prepared index; -1 if it has no valid state."""


@dataclass(frozen=True)
class DiskStateRequest:
    """All members of a bucket are lost: request a server's state of it on disk; answered by `DiskStateReply`
    after that state is read and verified."""

    epoch: int
    """Epoch of the controller."""
    bucket: str


@dataclass(frozen=True)
class DiskStateReply:
    """A server's state of a bucket on disk. The greatest recency (incarnation, term, index) has lost the
    least."""

    bucket: str
    server: str
    incarnation: int
    term: int
    """Term in which it was saved."""
    index: int
    """Saved index; -1 if there is no valid state."""
    members: tuple[str, ...] = ()
    """Servers of the newest group that the replica knew; each of them may have a newer state."""


@dataclass(frozen=True)
class LearnerCaughtUp:
    """A learner has caught up with the primary, which now commits nothing without it."""

    bucket: str
    term: int
    server: str
    """Name of the primary."""
    learner: str


@dataclass(frozen=True)
class PeerUnreachable:
    """A primary receives nothing from a replica."""

    bucket: str
    term: int
    server: str
    """Name of the primary."""
    replica: str


@dataclass(frozen=True)
class PrimaryUnreachable:
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
class Heartbeat:
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
class LeaseGrant:
    """Grant of a requested lease, which begins at the time of the request."""

    epoch: int
    server: str
    number: int
    seconds: float
    """Duration of the lease; 0 if the server must first send the buckets that it leads."""
    cluster: str = ""
    """Name of the controllers' cluster; a server with data belongs to the cluster that assigned them."""


@dataclass(frozen=True)
class NotLeader:
    """The controller is not the leader."""

    epoch: int
    leader: str
    """Name of the leader, if known; else empty."""


@dataclass(frozen=True)
class ServerExited:
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
class RunDescriptionRequest:
    """A server needs the description of a run to hold one of its buckets; answered by `RunDescription`."""

    run: str
    number: int = 0
    """Number of the request, repeated in the reply; 0 if the sender ignores it."""


@dataclass(frozen=True)
class RunDescription:
    """The description of a run; empty if unknown."""

    run: str
    description: str
    number: int = 0
    """Number of the request."""
    drained: tuple[str, ...] = ()
    """For a supervisor's request without a run: drained servers of its host that have no replicas left."""


@dataclass(frozen=True)
class LookupRequest:
    """A client requests the groups of buckets; answered by `LookupReply`."""

    terms: tuple[tuple[str, int], ...]
    """(bucket, newest term that the client knows); buckets that are not named are all requested."""
    lost: tuple[str, ...] = ()
    """Servers whose connection the client has lost; they may have a new address, for example after a token
    rotation."""
    number: int = 0
    """Number of the request, repeated in the reply; 0 if the sender ignores it."""


@dataclass(frozen=True)
class LookupReply:
    """The newer groups and the addresses of their primaries."""

    groups: tuple[Group, ...]
    addresses: tuple[tuple[str, str], ...]
    """(server, address)."""
    number: int = 0
    """Number of the request."""
