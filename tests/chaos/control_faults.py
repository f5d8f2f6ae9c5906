"""Planted mistakes about leases, elections and stored metadata, to check that the judges find them.

Knows: one possible mistake of each state machine of the controllers. Does not know: how it is found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tests.chaos.fault_injection import Fault, always, never

from cotswold.replication.controller.assignment_delivery import PrimaryClaims
from cotswold.replication.controller.bucket_map import BucketMap
from cotswold.replication.controller.controller import Controller
from cotswold.replication.controller.election import Election
from cotswold.replication.controller.failure_detector import FailureReports
from cotswold.replication.controller.leader_election import Transact
from cotswold.replication.controller.replication_repair import RemovalCheck, ReplicationRepair
from cotswold.replication.controller.run_deletion import RunDeletion
from cotswold.replication.controller.server_registry import ServerRecord, ServerRegistry
from cotswold.replication.replica.bucket_replica import BucketReplica
from cotswold.replication.replica.follower_progress import Followers
from cotswold.replication.replica.lease import DRIFT, Lease
from cotswold.replication.replica.server import ReplicaServer, ToReplicaServer
from cotswold.wire import Group, LeaseGrant, Send

_Any = Any
"""Stands for number types: patched machines accept any."""


def _long_lease(right: Callable[..., _Any]) -> Callable[..., _Any]:
    return lambda self, number, seconds: right(self, number, 4 * seconds)


def _no_lease(_: Callable[..., _Any]) -> Callable[..., _Any]:
    return lambda self, now: True


def _shortest(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def decided(self: Election, *words: _Any) -> Group | None:
        own = self.answers
        self.answers = {
            name: each if each.index < 0 else replace(each, index=10**9 - each.index)
            for name, each in own.items()
        }
        try:
            found: Group | None = right(self, *words)
        finally:
            self.answers = own
        return found

    return decided


def _uncompared(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def transaction(self: BucketMap, *words: _Any) -> Transact | None:
        asked: Transact | None = right(self, *words)
        return None if asked is None else replace(asked, compare=())

    return transaction


def _wrong_way(right: Callable[..., _Any]) -> Callable[..., _Any]:
    return lambda self, number, seconds: right(self, number, seconds * (1 + DRIFT) / (1 - DRIFT))


def _from_answer(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def receive(self: ReplicaServer[_Any], sender: str, message: ToReplicaServer, now: float) -> list[Send]:
        sends: list[Send] = right(self, sender, message, now)
        if isinstance(message, LeaseGrant):
            self.lease.end = max(self.lease.end, now + message.seconds)
        return sends

    return receive


def _without_members(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def look(self: ReplicationRepair, bucket: str, now: float) -> None:
        """Remove a drained server before another server has its copy."""
        group, of = self._view.groups.get(bucket), self._view.servers.of
        drained = [each for each in (group.secondaries if group else ()) if of[each].is_drained]
        if group is not None and drained and self._elections.is_settled(bucket):
            self.drop(group, drained, "it is drained")
        else:
            right(self, bucket, now)

    return look


def _assumed(right: Callable[..., _Any]) -> Callable[..., _Any]:
    return lambda self, is_done, now: right(self, True if is_done is None else is_done, now)


def _tells_nobody(_: Callable[..., _Any]) -> Callable[..., _Any]:
    return lambda self, server, runs, now: []


def _nobody_complains(_: Callable[..., _Any]) -> Callable[..., _Any]:
    return lambda self, now: []


def _held_back(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def decided(
        self: Election, living: list[str], may_act: bool, now: float, patience: tuple[float, float]
    ) -> Group | None:
        found: Group | None = right(self, living, may_act, now, patience)
        return found if now - self.started_at >= 10 else None

    return decided


def _always_hears(_: Callable[..., _Any]) -> Callable[..., _Any]:
    return lambda self, answered, now: 0.0


CONTROL_FAULTS: Mapping[str, Fault] = {
    "long-lease": Fault("a server counts its lease too long", Lease, "grant", _long_lease),
    "wrong-way": Fault("a server counts more of a lease, not less", Lease, "grant", _wrong_way),
    "from-answer": Fault("a lease counts from when it was had", ReplicaServer, "receive", _from_answer),
    "no-lease": Fault("a primary acts without a lease", Lease, "holds", _no_lease),
    "claims-unchecked": Fault("a lease is given to whoever was primary", PrimaryClaims, "may_lead", always),
    "hasty": Fault("a primary is elected while the one before may act", ServerRegistry, "may_act", never),
    "shortest": Fault("the shortest is elected", Election, "result", _shortest),
    "uncompared": Fault("controllers write without comparing", BucketMap, "transaction", _uncompared),
    "drained-first": Fault(
        "who is drained waits for no copy elsewhere", ReplicationRepair, "reconcile", _without_members
    ),
    "unconfirmed": Fault(
        "who is to stay is not asked whether it is there", RemovalCheck, "have_confirmed", always
    ),
    "assumed": Fault("what may be written down is taken for written", Controller, "on_transaction", _assumed),
    "no-complaints": Fault(  # harmless alone: cuts are mostly symmetric
        "a secondary tells nobody that its primary is silent, nor it that they are",
        *(BucketReplica, "_watch_primary", _nobody_complains),
        also=Fault("a primary complains of nobody", Followers, "silent_members", _nobody_complains),
    ),
    "never-cut-off": Fault("a primary that hears nobody stays so", FailureReports, "is_partitioned", never),
    "deaf-leads": Fault(
        "who hears no controller has a lease for ever", ServerRecord, "record_acknowledged", _always_hears
    ),
    "held-back": Fault("an election takes ten seconds", Election, "result", _held_back),
    "remembers": Fault("servers are not told to forget a run", RunDeletion, "deletions_for", _tells_nobody),
}
"""Faults by name."""
