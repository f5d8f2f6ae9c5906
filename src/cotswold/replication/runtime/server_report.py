"""Status report of a replica server, for operators.

Knows: the replica server, its networks, its unsaved changes. Does not know: who requests it, its
presentation.
"""

from __future__ import annotations

import os
import time

from cotswold.replication.replica.bucket_replica import Copy, Role
from cotswold.replication.replica.server import Keeper
from cotswold.replication.runtime.networks import Ways
from cotswold.shards.runtime.arithmetic import Array
from cotswold.transport import Endpoint
from cotswold.wire import FoundSaved, Prepare
from cotswold.wire.lifecycle import FlushBacklog, NetworkReport, ReplicaReport, ServerReport
from cotswold.wire.messenger import AnyMessage


def reported(
    machine: Keeper[Array], ways: Ways, unsaved: FlushBacklog | None, bucket: str = ""
) -> ServerReport:
    """Return the status of all buckets, or of one; ``unsaved`` is None if there is no disk."""
    named = {"administration": ways.administration, "replication": ways.replication, "updates": ways.updates}
    roads: dict[Endpoint, list[str]] = {}  # one entry per distinct network
    for name, endpoint in named.items():
        roads.setdefault(endpoint, []).append(name)
    refused = ways.all.refused
    return ServerReport(
        machine.name,
        tuple(_seen(each) for name, each in sorted(machine.copies.items()) if bucket in ("", name)),
        0 if unsaved is None else unsaved.dirty_bytes,
        0.0 if unsaved is None else unsaved.window_seconds,
        unsaved is not None,
        tuple(sorted(refused.items())),
        tuple(_road(", ".join(names), endpoint) for endpoint, names in roads.items()),
        os.getpid(),
    )


def exported(machine: Keeper[Array], bucket: str) -> tuple[AnyMessage, ...]:
    """Return the whole of a bucket that this server leads, in the form of a save; empty if it does not
    lead it."""
    copy = machine.copies.get(bucket)
    if copy is None or copy.role is not Role.PRIMARY or not copy.is_acting(time.monotonic()):
        return ()
    change, numbers = copy.contents.save(-1)
    group, index, vectors = copy.group, copy.contents.index, tuple(copy.contents.vectors)
    buffers = tuple(numbers[name, shard] for name in vectors for shard in change.shards)
    return (
        FoundSaved(bucket, machine.name, group.life, group.term, index),
        Prepare(bucket, group.term, -1, index, index, change, vectors, buffers),
    )


def _seen(copy: Copy[Array]) -> ReplicaReport:
    is_primary = copy.role is Role.PRIMARY
    return ReplicaReport(
        copy.bucket,
        copy.role.value,
        copy.group.term,
        copy.group.life,
        copy.index,
        copy.committed,
        copy.on_disk.index,
        tuple(sorted(copy.lag.items())) if is_primary else (),
        copy.contents.updates.waiting,
        is_primary and copy.is_waiting,
        *copy.spoke,
    )


def _road(name: str, endpoint: Endpoint) -> NetworkReport:
    traffic = endpoint.traffic
    return NetworkReport(
        name,
        endpoint.address,
        traffic.sent_bytes + traffic.sent_shared_bytes,
        traffic.received_bytes + traffic.received_shared_bytes,
    )
