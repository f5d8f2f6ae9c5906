"""Status of replicas and servers from their own messages, for monitoring.

Knows: the messages and their times, rates over the last seconds. Does not know: processes, sockets, which
samples count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field

from cotswold.wire.lifecycle import ActivityReport, ServerCounters, StepMetrics

_WINDOW_SECONDS = 5.0
"""Seconds over which rates are averaged."""
_REQUEST_SECONDS = 1.0
"""Seconds between a server's answer and the next request for its counts."""
_RETRY_SECONDS = 10.0
"""Seconds after which an unanswered request is resent; it may be lost."""


@dataclass(frozen=True)
class ReplicaStatus:
    """Status of a replica."""

    name: str
    machine: str
    pid: int
    activity: str
    """State as in `Replica.activity`; `starting` before its first message."""
    waits_for: tuple[str, ...]
    activity_seconds: float
    """Seconds since its last step began or ended; for a starting replica, since its process started."""
    silent_seconds: float
    """Seconds since its last message."""
    samples: int
    """Samples that it has computed, whether they counted or not."""
    samples_per_second: float
    samples_in_flight: int
    """Samples that are assigned to it and not settled."""
    updates: int
    """Its applied updates, counted per shard."""
    staleness: float
    """Mean staleness of these updates."""
    staleness_max: int


@dataclass(frozen=True)
class ServerStatus:
    """Status of a parameter server."""

    name: str
    machine: str
    pid: int
    shards: int
    updates: int
    """Applied updates, counted per shard."""
    updates_per_second: float
    queued_bytes: int
    """Bytes of queued updates."""
    queued_updates: int
    """Number of queued updates."""
    waits_for: tuple[str, ...]
    """Replicas that make it hold updates back."""
    refused_updates: tuple[tuple[str, int], ...]
    """Refused updates, by the first word of the reason."""
    silent_seconds: float
    """Seconds without an answer; 0 for a server that answers."""
    under_replicated: tuple[int, int, int] = (0, 0, 0)
    """`short` of `ServerCounters`."""
    dirty_bytes: int | None = None
    """Bytes that are not on its disk; None without a disk, as for the next two fields."""
    dirty_seconds: float | None = None
    """Age in seconds of the oldest of these changes: the loss if all servers exit."""
    dirty_seconds_max: float | None = None
    """Longest age so far in this process, in seconds."""
    primary_buckets: int | None = None
    """`leads` of `BucketRoles`, followed by its next three fields; None without replication."""
    bucket_replicas: int | None = None
    term: int | None = None
    lag_changes: int | None = None


@dataclass(frozen=True)
class ProcessLocation:
    """Location of a process."""

    name: str
    machine: str
    pid: int


class GrowthRate:
    """Growth per second of a total over the last seconds."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def add(self, now: float, total: int) -> None:
        """Note the present total."""
        self._points.append((now, total))
        while len(self._points) > 2 and self._points[1][0] <= now - _WINDOW_SECONDS:
            self._points.popleft()

    def per_second(self, now: float) -> float:
        """Mean growth; 0 before there are two points, and falling if no more arrive."""
        if len(self._points) < 2:
            return 0.0
        (began, first), (_, last) = self._points[0], self._points[-1]
        return (last - first) / max(now - began, 1e-9) if now - began > 0 else 0.0


@dataclass
class _ReplicaRecord:
    """State of one replica."""

    known_since: float
    """Time at which it was first known."""
    last_message: float
    """Time of its last message."""
    activity: ActivityReport | None = None
    activity_at: float = 0.0
    samples: int = 0
    rate: GrowthRate = field(default_factory=GrowthRate)


@dataclass
class _ServerRecord:
    """State of one server."""

    unanswered_since: float | None = None
    """Time since which an answer is outstanding."""
    requested_at: float = float("-inf")
    """Time of the last request."""
    answered_at: float = float("-inf")
    counts: ServerCounters | None = None
    leads: tuple[int, int] | None = None
    """Number of buckets that it led at the last report, and their newest term."""
    replicas: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Updates of each replica, their mean staleness, and the maximum."""
    rate: GrowthRate = field(default_factory=GrowthRate)


class ReplicaMonitor:
    """Collects messages and returns statuses; times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._replicas: dict[str, _ReplicaRecord] = {}
        self._servers: dict[str, _ServerRecord] = {}

    def on_message(self, message: StepMetrics | ActivityReport | ServerCounters, now: float) -> None:
        """Record a message of a replica or a server."""
        if isinstance(message, ServerCounters):
            server = self._servers.setdefault(message.server, _ServerRecord())
            leads = None if message.roles is None else (message.roles.leads, message.roles.term)
            before = 0 if server.counts is None else server.counts.updates
            # other servers' counts were added or removed
            if leads != server.leads or message.updates < before:
                server.rate = GrowthRate()
            server.unanswered_since, server.answered_at, server.counts, server.leads = (
                None,
                now,
                message,
                leads,
            )
            server.rate.add(now, message.updates)
            server.replicas = {name: figures for name, *figures in message.replicas}
            return
        replica = self._replicas.setdefault(message.name, _ReplicaRecord(now, now))
        replica.last_message = now
        if isinstance(message, ActivityReport):
            replica.activity, replica.activity_at = message, now
        else:
            if not replica.samples:
                replica.rate.add(now - message.seconds, 0)
            replica.samples += message.samples
            replica.rate.add(now, replica.samples)

    def should_request(self, name: str, now: float) -> bool:
        """True if a server's counts should be requested now; the request is noted."""
        server = self._servers.setdefault(name, _ServerRecord())
        if server.unanswered_since is None:
            is_due = now - server.answered_at >= _REQUEST_SECONDS
        else:
            is_due = now - server.requested_at >= _RETRY_SECONDS
        if is_due:
            server.unanswered_since, server.requested_at = server.unanswered_since or now, now
        return is_due

    def silent_seconds(self, name: str, now: float) -> float:
        """Seconds without an answer of a server; 0 if it answers, or was not asked."""
        known = self._servers.get(name)
        return 0.0 if known is None or known.unanswered_since is None else now - known.unanswered_since

    def replica(
        self, location: ProcessLocation, in_hand: int, last_message: float, now: float
    ) -> ReplicaStatus:
        """Status of a running replica; ``last_message`` is the time of the coordinator's last message from
        it."""
        known = self._replicas.setdefault(location.name, _ReplicaRecord(now, now))
        said = known.activity
        of_it = [
            each.replicas[location.name] for each in self._servers.values() if location.name in each.replicas
        ]
        updates = sum(count for count, _, _ in of_it)
        return ReplicaStatus(
            location.name,
            location.machine,
            location.pid,
            "starting" if said is None else said.activity,
            () if said is None else said.waits_for,
            now - known.known_since if said is None else said.seconds + now - known.activity_at,
            now - max(known.last_message, last_message),
            known.samples,
            known.rate.per_second(now),
            in_hand,
            int(updates),
            sum(count * mean for count, mean, _ in of_it) / max(1, updates),
            int(max((most for _, _, most in of_it), default=0)),
        )

    def server(self, place: ProcessLocation, shards: int, now: float) -> ServerStatus:
        """Status of a running server with this many shards."""
        known = self._servers.setdefault(place.name, _ServerRecord())
        counts, silent = known.counts, self.silent_seconds(place.name, now)
        if counts is None:
            return ServerStatus(place.name, place.machine, place.pid, shards, 0, 0.0, 0, 0, (), (), silent)
        of, parts = counts.unsaved, counts.roles
        return ServerStatus(
            place.name,
            place.machine,
            place.pid,
            counts.shards,
            counts.updates,
            known.rate.per_second(now),
            counts.waiting,
            counts.queued,
            counts.waits_for,
            counts.refused,
            silent,
            counts.short,
            *((None, None, None) if of is None else (of.dirty_bytes, of.window_seconds, of.longest_seconds)),
            *((None, None, None, None) if parts is None else astuple(parts)),
        )

    def forget(self, name: str) -> None:
        """Remove a process."""
        self._replicas.pop(name, None)
        self._servers.pop(name, None)
