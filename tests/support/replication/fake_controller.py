"""One controller in isolation: its metadata store, the time, and the messages of servers."""

from __future__ import annotations

from collections.abc import Iterable

from cotswold.replication.controller.controller import Controller
from cotswold.replication.controller.leader_election import Read, StateRequest, Transact
from cotswold.replication.controller.settings import ControllerSettings
from cotswold.replication.replica.saved_bucket import disk_of
from cotswold.wire import (
    Assign,
    Assigned,
    Create,
    DiskStateReply,
    DiskStateRequest,
    Fence,
    FenceReply,
    Group,
    Heartbeat,
    LearnerCaughtUp,
    Send,
    ServerExited,
)
from cotswold.wire.names import bucket_of, run_of

BUCKET = "bucket 0"


class State:
    """Keys and values."""

    def __init__(self) -> None:
        self.items: dict[str, str] = {}

    def do(self, wish: Transact) -> bool:
        if any(self.items.get(key) != value for key, value in wish.compare):
            return False
        for key, value in wish.put:
            self.items.pop(key, None)
            if value is not None:
                self.items[key] = value
        return True


WHAT = "what they hold " * 1000
PATIENCE = 0.2, 1.0
"""Shortest and longest wait of elections."""


class ControllerHarness:
    """One controller, its metadata store, and the time."""

    def __init__(
        self, state: State | None = None, name: str = "one", control: ControllerSettings | None = None
    ) -> None:
        self.now, self.state = 100.0, state or State()
        self.controller = Controller(
            name, control or ControllerSettings(replication_factor=3), self.now, name
        )
        self.sent: list[Send] = []
        self.beats = 0

    def pass_time(self, seconds: float, beats: Iterable[str] = "") -> None:
        """Advance time in steps of a twentieth, with heartbeats of these servers, which claim their buckets
        by the map."""
        for _ in range(round(seconds / 0.05)):
            self.now += 0.05
            for name in beats:
                self.beat(name)
            self.sent += self.controller.tick(self.now)
            self.answer()

    def answer(self) -> None:
        while (wish := self.controller.next_request(self.now)) is not None:
            self.sent += self.answered(wish)

    def answered(self, wish: StateRequest) -> list[Send]:
        if isinstance(wish, Read):
            return self.controller.on_read(wish.of(self.state.items), self.now)
        return self.controller.on_transaction(self.state.do(wish), self.now)

    def beat(self, name: str, *, leads: tuple[tuple[str, int], ...] | None = None) -> list[Send]:
        claims = tuple(
            (each.bucket, each.term) for each in self.controller.groups.values() if each.primary == name
        )
        self.beats += 1  # it has heard all that was said to it
        leads = claims if leads is None else leads
        here = Heartbeat(name, f"host {name[0]}", f"at {name}", 1, leads, answered=self.beats)
        return self.tell(name, here)

    def tell(self, sender: str, message: object) -> list[Send]:
        sends = self.controller.receive(sender, message, self.now)  # type: ignore[arg-type]  # any of them
        self.sent += sends
        return sends

    def take(self, kind: type) -> list[Send]:
        found = [each for each in self.sent if isinstance(each.message, kind)]
        self.sent = [each for each in self.sent if not isinstance(each.message, kind)]
        return found

    @property
    def group(self) -> Group:
        return self.controller.groups[BUCKET]

    def assure(self) -> None:
        """Confirm each request about a group."""
        for each in self.take(Assign):
            assert isinstance(each.message, Assign)
            group, number = each.message.group, each.message.number
            self.tell(each.to, Assigned(group.bucket, group.term, each.to, number))

    def create(self, names: str) -> None:
        self.pass_time(1.0, names)
        assert self.controller.create(Create("run", WHAT, (BUCKET,), len(names)), self.now)
        self.pass_time(0.1, names)
        for name in self.group.all_servers:
            self.tell(name, Assigned(BUCKET, self.group.term, name))
        self.sent.clear()


class Cluster(ControllerHarness):
    """The same with cooperative servers: they answer fences, catch up, and act on every message."""

    def __init__(
        self,
        names: Iterable[str],
        control: ControllerSettings,
        state: State | None = None,
        name: str = "one",
        buckets: int = 1,
    ) -> None:
        """Make servers with these ``names``, whose first letters are their hosts, and a run called
        ``run``.
        """
        super().__init__(state, name, control)
        self.there = dict.fromkeys(names)
        self.learns = True
        """True if learners catch up."""
        self.answers = True
        """True if secondaries answer fences."""
        self.saved: dict[str, int] = {}
        """Index of every bucket on each disk; other disks are not read."""
        self.live(1.5)
        if buckets:
            self.found(buckets)

    def found(self, buckets: int, run: str = "run") -> None:
        """Make the buckets of a run."""
        names = tuple(bucket_of(run, number) for number in range(buckets))
        self.tell("client", Create(run, WHAT, names, 1))
        self.live(0.5)
        assert all(name in self.controller.groups for name in names)

    def live(self, seconds: float) -> None:
        """Advance time."""
        for _ in range(round(seconds / 0.05)):
            self.pass_time(0.05, list(self.there))
            self._play()

    def end(self, name: str, why: str = "was killed by SIGKILL") -> None:
        """End a server's process, with a report of its supervisor."""
        self.there.pop(name, None)
        self.tell("supervisor", ServerExited(name, why))

    def _play(self) -> None:
        sends, self.sent = self.sent, []
        for each in sends:
            message = each.message
            if each.to not in self.there:
                continue
            if isinstance(message, Fence):
                group = self.controller.groups.get(message.bucket, Group(message.bucket, 0, ""))
                if each.to == group.primary or self.answers:
                    self.tell(each.to, FenceReply(message.bucket, message.term, each.to, group.term, 7))
            elif isinstance(message, DiskStateRequest) and disk_of(each.to) in self.saved:
                found = self.controller.groups[message.bucket].term, self.saved[disk_of(each.to)]
                self.tell(each.to, DiskStateReply(message.bucket, each.to, 0, *found))
            elif isinstance(message, Assign):
                group, number = message.group, message.number
                self.tell(each.to, Assigned(group.bucket, group.term, each.to, number))
        for group in list(self.controller.groups.values()):
            for learner in group.learners if self.learns and group.primary in self.there else ():
                if learner in self.there:
                    self.tell(
                        group.primary, LearnerCaughtUp(group.bucket, group.term, group.primary, learner)
                    )
        self.answer()

    # --- lookups ---

    def group_of(self, bucket: str) -> Group:
        """Return the stored group of a bucket."""
        return self.controller.groups[bucket]

    def copies(self, run: str = "run") -> dict[str, int]:
        """Return the number of stored copies of each server."""
        groups = [each for each in self.controller.groups.values() if run_of(each.bucket) == run]
        return {name: sum(name in each.all_servers for each in groups) for name in self.there}

    def leads(self) -> dict[str, int]:
        """Return the number of stored primaries of each server."""
        groups = self.controller.groups.values()
        return {name: sum(name == each.primary for each in groups) for name in self.there}

    def asked(self, message: object) -> list[object]:
        """Return the replies to a client."""
        return [each.message for each in self.tell("client", message) if each.to == "client"]
