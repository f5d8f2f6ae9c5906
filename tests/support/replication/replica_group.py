"""Servers with copies of one bucket, driven message by message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from cotswold.optim.server_rules import Sgd
from cotswold.paramserver.core.settings import AsyncSettings, QueueLimits
from cotswold.paramserver.core.update_server import UpdateServer
from cotswold.replication.replica.bucket_state import BucketState
from cotswold.replication.replica.server import ReplicaServer
from cotswold.replication.replica.settings import ReplicationSettings
from cotswold.shards.core.shard_server import ShardServer
from cotswold.simulate.protocols.lists import ListArithmetic, ListUpdates
from cotswold.wire import (
    COORDINATOR,
    Assign,
    Assigned,
    BucketEnvelope,
    BucketMessage,
    CoordinatorState,
    Group,
    LeaseGrant,
    Prepare,
    Send,
    Shard,
    Update,
    Write,
)

BUCKET = "bucket 0"
SHARDS = [Shard(0, BUCKET, 0, 2, "", 0), Shard(1, BUCKET, 2, 4, "", 0)]


def contents(_: str) -> BucketState[list[float]]:
    server = ShardServer(BUCKET, SHARDS, ListArithmetic())
    settings = AsyncSettings("run", "weights", Sgd(), {"": 2}, 8, room=QueueLimits(1000, 1000))
    return BucketState(
        server, UpdateServer(server, settings, ListArithmetic(), ListUpdates()), ListArithmetic()
    )


class ReplicaGroup:
    """Servers with names of one letter, whose messages a test delivers."""

    def __init__(self, names: str, copying: ReplicationSettings | None = None) -> None:
        self.now = 100.0
        copying = copying or ReplicationSettings()
        self.of = {
            name: ReplicaServer(name, f"host {name}", f"at {name}", contents, copying, self.now)
            for name in names
        }
        self.waiting: list[tuple[str, Send]] = []
        """(sender, message) pairs not delivered yet."""
        self.prepares: list[tuple[str, str]] = []
        """(sender, receiver) pairs of delivered prepares."""

    def say(self, name: str, sends: Sequence[Send]) -> None:
        self.waiting += [(name, each) for each in sends]

    def tell(self, name: str, sender: str, message: object) -> None:
        self.say(name, self.of[name].receive(sender, cast(Assign, message), self.now))

    def assign(self, group: Group, names: str = "") -> None:
        for name in names or "".join(self.of):
            self.tell(name, "controller", Assign(1, group))

    def lease(self, name: str, seconds: float = 1000.0) -> None:
        """Grant a lease as if requested now."""
        number = self.of[name].lease.request(self.now)
        self.tell(name, "controller", LeaseGrant(1, name, number, seconds))

    def carry(self, *, lost: str = "", cut: str = "") -> list[Send]:
        """Deliver everything to servers; return messages to others.

        No message passes ``lost``, or from the first to the second of ``cut``.
        """
        outside: list[Send] = []
        while self.waiting:
            sender, send = self.waiting.pop(0)
            if sender in lost or send.to in lost or sender + send.to == cut:
                continue
            self.prepares += [(sender, send.to)] * isinstance(send.message, Prepare)
            if send.to in self.of:
                self.tell(send.to, sender, send.message)
            else:
                outside.append(send)
        return [each for each in outside if not isinstance(each.message, Assigned)]

    def ask(self, name: str, sender: str, message: BucketMessage) -> None:
        self.tell(name, sender, BucketEnvelope(BUCKET, 1, message))

    def drain(self, name: str) -> None:
        self.say(name, self.of[name].drain(self.now))

    def begin(self, group: Group) -> None:
        """Write the weights, and start a session of a client."""
        self.assign(group)
        self.lease(group.primary)
        self.ask(group.primary, COORDINATOR, Write(1, "weights", (0, 1), ((0.0, 0.0), (0.0, 0.0))))
        self.ask(group.primary, COORDINATOR, CoordinatorState(1, ((1, "client"),), ((1, 1.0),), 0, 0))
        self.settle()
        self.carry()

    def settle(self) -> None:
        """Pass enough time for heartbeats, so that all servers know each other's state."""
        for _ in range(3):
            self.now += 0.2
            for name, keeper in self.of.items():
                self.say(name, keeper.tick(self.now))
            self.kept = self.carry()

    def weights(self, name: str) -> list[list[float]]:
        return self.of[name].copies[BUCKET].state.vectors["weights"]


def push(number: int, *values: float) -> Update:
    buffers = (tuple(values[:2]), tuple(values[2:]))
    return Update("run", 1, number, "gradient", (0, 1), (0, 0), 1, -1.0, (), 0, (), buffers)


def said(sends: Sequence[Send], kind: type) -> list[object]:
    """Return the messages of a kind about buckets."""
    inner = [each.message.message for each in sends if isinstance(each.message, BucketEnvelope)]
    return [each for each in inner if isinstance(each, kind)]


GROUP = Group(BUCKET, 1, "a", ("b", "c"))
