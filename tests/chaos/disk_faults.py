"""Planted mistakes about disks, to check that the judges find them.

Knows: one possible mistake of each state machine about disks. Does not know: how it is found.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.chaos.fault_injection import Fault, never

from cotswold.paramserver.core.dispatcher import Dispatcher
from cotswold.paramserver.core.durability import LedgerDurability
from cotswold.paramserver.core.shard_metadata import ShardMetadata
from cotswold.paramserver.core.update_server import UpdateServer
from cotswold.replication.controller.disk_recovery import DiskRecovery
from cotswold.replication.replica.bucket_replica import BucketReplica
from cotswold.replication.replica.bucket_state import BucketState
from cotswold.replication.replica.follower_progress import Followers, PeerActivity
from cotswold.replication.replica.group_member import GroupMember
from cotswold.replication.replica.saved_bucket import SavedBucket
from cotswold.replication.replica.server import ReplicaServer
from cotswold.shards.core.sample_ledger import SampleLedger
from cotswold.simulate.protocols.disks import SimulatedDisk
from cotswold.wire import BucketChange, DiskStateReply, Group, Ranges, Send

_Any = Any
"""Stands for number types: patched machines accept any."""


def _same_life(right: Callable[..., _Any]) -> Callable[..., _Any]:
    return lambda self, lives: right(self, 0)


def _nobody_is_void(_: Callable[..., _Any]) -> Callable[..., _Any]:
    def void_all(self: ShardMetadata[_Any], named: Collection[int]) -> None:
        self.void_sessions = 0

    return void_all


def _at_once(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def saves(self: ReplicaServer[_Any]) -> Iterator[tuple[int, SavedBucket]]:
        for number, saved in right(self):
            self.copies[saved.bucket].saved(saved.index, saved.term)
            yield number, saved

    return saves


def _unnoticed(_: Callable[..., _Any]) -> Callable[..., _Any]:
    return lambda self, number: self.saved(number)


def _in_memory(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def answered(self: LedgerDurability, order: int, settled: Ranges, saved: Sequence[int | None]) -> None:
        right(self, order, settled, [])

    return answered


def _nothing_is_lost(_: Callable[..., _Any]) -> Callable[..., _Any]:
    return lambda self, has: ()


def _impatient(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def decided(
        self: DiskRecovery,
        living: Collection[str],
        ended: Collection[str],
        now: float,
        patience: tuple[float, float],
        known: Collection[str] = (),
    ) -> Group | None:
        found: Group | None = right(self, living, self.group.members, now, (0.0, 0.0))
        return found

    return decided


def _unverified(_: Callable[..., _Any]) -> Callable[..., _Any]:
    def intact_bucket(self: SimulatedDisk, bucket: str) -> SavedBucket | None:
        saved = self.contents.get(bucket)
        if saved is None or bucket not in self.damaged:
            return saved
        key = min(saved.numbers)
        return replace(saved, numbers={**saved.numbers, key: (1.0, 1.0)})

    return intact_bucket


def _oldest(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def heard(self: DiskRecovery, found: DiskStateReply, now: float) -> None:
        if found.index >= 0:
            found = replace(
                found, incarnation=-found.incarnation, term=-found.term, index=10**9 - found.index
            )
        right(self, found, now)

    return heard


def _own_disk(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def answering(self: BucketReplica[_Any], send: Send) -> Send:
        own, self._followers = self._followers, Followers(self.settings, PeerActivity())
        try:
            found: Send = right(self, send)
        finally:
            self._followers = own
        return found

    return answering


def _weights_alone(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def save(self: BucketState[_Any], after: int) -> tuple[BucketChange, dict[tuple[str, int], object]]:
        change, numbers = right(self, after)
        return change, {key: each for key, each in numbers.items() if key[0] == "weights"}

    return save


def _nothing_to_save(_: _Any) -> _Any:
    return property(never(_))


def _seldom(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def saves(self: ReplicaServer[_Any]) -> Iterator[tuple[int, SavedBucket]]:
        calls = vars(self)["calls"] = vars(self).get("calls", 0) + 1
        return iter(right(self)) if calls % 10 == 0 else iter(())

    return saves


def _to_the_end(_: Callable[..., _Any]) -> Callable[..., _Any]:
    return lambda self, start, stop: stop


def _tells_nobody(_: Callable[..., _Any]) -> Callable[..., _Any]:
    return lambda self, places, of: None


DISK_FAULTS: Mapping[str, Fault] = {
    "same-life": Fault(
        "a revived bucket counts on where its disk was", ShardMetadata, "mark_restored", _same_life
    ),
    "sessions-go-on": Fault(
        "sessions push on after a window was lost", ShardMetadata, "void_sessions_until", _nobody_is_void
    ),
    "saved-at-once": Fault(
        "what is to be written is said to be on the disk", ReplicaServer, "saves", _at_once
    ),
    "settled-in-memory": Fault(
        "what no disk has is settled", LedgerDurability, "record_acknowledgement", _in_memory
    ),
    "nothing-lost": Fault(
        "what a disk has not is not handed out again", SampleLedger, "revoke", _nothing_is_lost
    ),
    "applied-again": Fault("a bucket applies again what another one lost", UpdateServer, "_is_repeat", never),
    "no-seams": Fault(
        "a hand has samples that a bucket has and others that it lacks",
        SampleLedger,
        "_end_of_assignment",
        _to_the_end,
    ),
    "pushed-together": Fault(
        "samples that a bucket has are pushed with others", SampleLedger, "is_divided", never
    ),
    "impatient": Fault("a bucket is revived while a member lives", DiskRecovery, "result", _impatient),
    "taken-for-saved": Fault(
        "what a full disk did not take counts as saved", ReplicaServer, "unsaved", _unnoticed
    ),
    "unverified": Fault(
        "no checksum of what a disk has is looked at", SimulatedDisk, "intact_bucket", _unverified
    ),
    "never-saved": Fault("nothing is put on a disk", GroupMember, "is_unsaved", _nothing_to_save),
    "seldom-saved": Fault("a disk is given something every few seconds", ReplicaServer, "saves", _seldom),
    "unnamed": Fault("nobody is told which samples are lost", Dispatcher, "_report_lost", _tells_nobody),
    "own-disk": Fault("saved is what the disk of the primary has", BucketReplica, "_answering", _own_disk),
    "weights-on-disk": Fault("what rules keep is not put on the disk", BucketState, "save", _weights_alone),
    "oldest-disk": Fault(
        "a bucket goes on from whoever has lost the most", DiskRecovery, "record_reply", _oldest
    ),
}
"""Faults by name."""
