"""Status of the cluster, for operators, as the leader sees it.

Knows: servers, runs, under-replicated buckets. Does not know: its presentation.
"""

from __future__ import annotations

from cotswold.replication.controller.cluster_view import ClusterView
from cotswold.replication.controller.replication_repair import ReplicationRepair
from cotswold.replication.controller.server_registry import ServerRecord
from cotswold.replication.replica.saved_bucket import disk_of, is_restored
from cotswold.wire import (
    BucketStatus,
    ClusterEvent,
    LookupReply,
    LookupRequest,
    ReplicaServerStatus,
    RunStatus,
    StatusReply,
)
from cotswold.wire.names import run_of

_MAX_BUCKETS_LISTED = 100
"""Maximum number of under-replicated buckets that are listed."""


def cluster_status(
    controller: str,
    epoch: int,
    view: ClusterView,
    repair: ReplicationRepair,
    events: tuple[ClusterEvent, ...],
    now: float,
) -> StatusReply:
    """Return the status of the cluster."""
    control, found = view.control, view.map
    short = [view.groups[bucket] for bucket in view.under_replicated]
    runs = {run: [0, 0] for run in found.named}
    for group in short:
        counted = runs.setdefault(run_of(group.bucket), [0, 0])
        counted[0] += 1
        counted[1] += len(group.members) < control.replication_factor_min
    return StatusReply(
        controller,
        epoch,
        control.replication_factor,
        control.replication_factor_min,
        tuple(_server(known, now) for known in _listed(view)),
        tuple(RunStatus(run, found.count(run), few, waiting) for run, (few, waiting) in runs.items()),
        tuple(
            BucketStatus(
                each.bucket,
                each.term,
                each.members,
                each.learners,
                _waiting_reason(each.bucket, view, repair),
            )
            for each in short[:_MAX_BUCKETS_LISTED]
        ),
        len(view.learning),
        events,
    )


def lookup_reply(find: LookupRequest, view: ClusterView) -> LookupReply:
    """Return the newer groups, with the addresses of their primaries."""
    groups, of = tuple(view.map.newer(dict(find.terms))), view.servers.of
    primaries = dict.fromkeys(each.primary for each in groups)
    primaries.update(dict.fromkeys(name for name in find.lost if name in of))
    return LookupReply(groups, tuple((name, of[name].address) for name in primaries), find.number)


def _listed(view: ClusterView) -> list[ServerRecord]:
    """Return the servers to show: without silent ones that have no replicas and whose disk another server
    has taken over."""
    known = [each for _, each in sorted(view.servers.of.items())]
    disks = {disk_of(each.name) for each in known if each.is_alive}
    return [
        each
        for each in known
        if each.copies
        or each.is_alive
        or not (is_restored(each.name) or (disk_of(each.name) in disks and not each.has_exited))
    ]


def _server(known: ServerRecord, now: float) -> ReplicaServerStatus:
    state = "living"
    if known.is_drained and not (known.is_alive or known.copies):
        state = "drained"
    elif known.has_exited:
        state = "ended"
    elif not known.is_alive:
        state = "gone"
    elif known.is_drained:
        state = "draining"
    seconds = -1.0 if known.last_heartbeat is None else now - known.last_heartbeat
    return ReplicaServerStatus(
        known.name, known.host, known.address, state, seconds, len(known.copies), len(known.leads)
    )


def _waiting_reason(bucket: str, view: ClusterView, repair: ReplicationRepair) -> str:
    group = view.map.intended(bucket)
    if group is not None and group.learners:
        return f"{group.learners[0]} copies from {group.primary}"
    if bucket in repair.postponed:
        return repair.postponed[bucket].reason
    return "waits for an election or a placement"
