"""Requests of operators, and of finished runs, to the controllers.

Knows: the fields. Does not know: decisions, presentation.

The leader of the controllers replies; the others reply with `NotLeader`. The sender repeats a request until
the reply arrives; a repeated request has the same effect.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeleteRunRequest:
    """Delete a run, whose name is never used again; answered by `RunDeleted`."""

    run: str


@dataclass(frozen=True)
class RunDeleted:
    """The run is deleted."""

    run: str


@dataclass(frozen=True)
class DeleteRun:
    """The run does not exist: the server deletes its data of the run in memory and on disk."""

    epoch: int
    """Epoch of the controller."""
    run: str
    cluster: str = ""
    """Cluster name, as in `LeaseGrant`."""


@dataclass(frozen=True)
class Drain:
    """Move all replicas off a server; answered by `DrainStatus`, and repeated until none is left."""

    server: str
    seconds: float
    """Time limit in seconds; near its end a bucket may temporarily have one copy less."""
    is_lost: bool = False
    """True if the server never returns and data that only it had are lost; used only if the server is
    silent."""


@dataclass(frozen=True)
class DrainStatus:
    """Progress of a drain."""

    server: str
    left: int
    """Replicas still on the server."""
    why: str
    """Reason for waiting, as a sentence."""
    copying: bool = False
    """True if a replica is being copied to another server."""


@dataclass(frozen=True)
class Undrain:
    """Allow replicas on a server again; answered by `Undrained`."""

    server: str


@dataclass(frozen=True)
class Undrained:
    """The server may receive replicas."""

    server: str


@dataclass(frozen=True)
class StatusRequest:
    """Request the status of the cluster; answered by `StatusReply`."""

    bucket: str = ""
    """Return only events of this bucket; empty for all."""
    number: int = 0
    """Number of the request, repeated in the reply; 0 if the sender ignores it."""


@dataclass(frozen=True)
class ReplicaServerStatus:
    """Status of one server."""

    name: str
    host: str
    address: str
    state: str
    """``living``, ``draining``, ``drained`` (by an operator: no replicas, no process), ``gone`` (silent) or
    ``ended``."""
    seconds: float
    """Seconds since the last heartbeat; -1 if none ever arrived."""
    copies: int
    leads: int
    """Number of its replicas that are primaries."""


@dataclass(frozen=True)
class RunStatus:
    """Status of one run."""

    run: str
    buckets: int
    short: int
    """Buckets with fewer members than the replication factor."""
    waiting: int
    """Buckets with too few members to commit updates."""
    name: str = ""
    """Name that the user has given to the run; empty if none."""


@dataclass(frozen=True)
class BucketStatus:
    """A bucket with too few replicas."""

    bucket: str
    term: int
    members: tuple[str, ...]
    """Names of the members, the primary first."""
    learners: tuple[str, ...]
    why: str
    """Reason for waiting, as a sentence."""


@dataclass(frozen=True)
class ClusterEvent:
    """An event of the cluster."""

    seconds: float
    """Age in seconds."""
    kind: str
    name: str
    sentence: str
    run: str
    """Run of the affected buckets, or the run that the event is about; empty for neither."""
    servers: tuple[tuple[str, int], ...]
    """(server, number of affected buckets)."""
    number: int = 0
    """Sequence number among the events of one controller process; 0 if it has none."""


@dataclass(frozen=True)
class StatusReply:
    """The cluster as the controllers' leader sees it."""

    controller: str
    epoch: int
    replication_factor: int
    """Replication factor of a bucket."""
    least: int
    """Minimum number of members to commit updates."""
    servers: tuple[ReplicaServerStatus, ...]
    runs: tuple[RunStatus, ...]
    short: tuple[BucketStatus, ...]
    """Buckets with too few replicas; only the first ones if there are many."""
    moving: int
    """Buckets with a copy in progress, or without an elected primary."""
    events: tuple[ClusterEvent, ...]
    """The newest events, the oldest first."""
    refused: tuple[tuple[str, int], ...] = ()
    """(reason, number) of messages that the controller process has rejected since its start."""
    process: int = 0
    """Process id on the controller's host; 0 if unknown."""
    number: int = 0
    """Number of the request."""
