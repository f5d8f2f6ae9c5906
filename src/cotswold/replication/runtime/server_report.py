"""Status report of a replica server, for operators.

Knows: the replica server, its networks, its unsaved changes. Does not know: who requests it, its
presentation.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace

from cotswold.paramserver.runtime.server_metrics import ServerMetrics
from cotswold.replication.replica.bucket_replica import BucketReplica
from cotswold.replication.replica.group_member import ReplicaRole
from cotswold.replication.replica.server import ReplicaServer
from cotswold.replication.runtime.networks import NetworkEndpoints
from cotswold.shards.runtime.arithmetic import Array
from cotswold.transport import Endpoint
from cotswold.wire import DiskStateReply, Prepare
from cotswold.wire.lifecycle import (
    BucketReplicaStatus,
    BucketRoles,
    FlushBacklog,
    NetworkTraffic,
    ServerCounters,
    ServerReport,
)
from cotswold.wire.messenger import AnyMessage
from cotswold.wire.names import run_of


def server_report(
    machine: ReplicaServer[Array], endpoints: NetworkEndpoints, unsaved: FlushBacklog | None, bucket: str = ""
) -> ServerReport:
    """Return the status of all buckets, or of one; ``unsaved`` is None if there is no disk."""
    named = {
        "administration": endpoints.administration,
        "replication": endpoints.replication,
        "updates": endpoints.updates,
    }
    networks: dict[Endpoint, list[str]] = {}  # one entry per distinct network
    for name, endpoint in named.items():
        networks.setdefault(endpoint, []).append(name)
    refused = endpoints.all.rejections
    return ServerReport(
        machine.name,
        tuple(_status(each) for name, each in sorted(machine.copies.items()) if bucket in ("", name)),
        0 if unsaved is None else unsaved.dirty_bytes,
        0.0 if unsaved is None else unsaved.window_seconds,
        unsaved is not None,
        tuple(sorted(refused.items())),
        tuple(_traffic(", ".join(names), endpoint) for endpoint, names in networks.items()),
        os.getpid(),
    )


def server_counts(
    machine: ReplicaServer[Array],
    work: ServerMetrics,
    refused: Mapping[str, int],
    unsaved: FlushBacklog | None,
    run: str,
) -> ServerCounters:
    """Return the counters of a server; of one run, if named."""
    own = [each for name, each in machine.copies.items() if run in ("", run_of(name))]
    led = [each for each in own if each.role is ReplicaRole.PRIMARY]
    lag = max((behind for each in led for behind in each.lag.values()), default=0)
    counts = work.counts(machine.name, [each.state.updates for each in led], refused)
    short = machine.under_replicated(lambda name: run in ("", run_of(name)))
    return replace(
        counts,
        short=(*short, machine.settings.min_members),
        unsaved=unsaved,
        restored=tuple(shard for each in led for shard in each.restored),
        roles=BucketRoles(len(led), len(own), max((each.group.term for each in own), default=0), lag),
    )


def bucket_export(machine: ReplicaServer[Array], bucket: str) -> tuple[AnyMessage, ...]:
    """Return the whole of a bucket that this server leads, in the form of a save; empty if it does not
    lead it."""
    copy = machine.copies.get(bucket)
    if copy is None or copy.role is not ReplicaRole.PRIMARY or not copy.is_acting(time.monotonic()):
        return ()
    change, numbers = copy.state.save(-1)
    group, index, vectors = copy.group, copy.state.index, tuple(copy.state.vectors)
    buffers = tuple(numbers[name, shard] for name in vectors for shard in change.shards)
    return (
        DiskStateReply(bucket, machine.name, group.incarnation, group.term, index),
        Prepare(bucket, group.term, -1, index, index, change, vectors, buffers),
    )


def _status(copy: BucketReplica[Array]) -> BucketReplicaStatus:
    is_primary = copy.role is ReplicaRole.PRIMARY
    return BucketReplicaStatus(
        copy.bucket,
        copy.role.value,
        copy.group.term,
        copy.group.incarnation,
        copy.index,
        copy.committed,
        copy.durability.index,
        tuple(sorted(copy.lag.items())) if is_primary else (),
        copy.state.updates.queued_bytes,
        is_primary and copy.is_waiting,
        *copy.last_replies,
    )


def _traffic(name: str, endpoint: Endpoint) -> NetworkTraffic:
    traffic = endpoint.traffic
    return NetworkTraffic(
        name,
        endpoint.address,
        traffic.sent_bytes + traffic.sent_shared_bytes,
        traffic.received_bytes + traffic.received_shared_bytes,
    )
