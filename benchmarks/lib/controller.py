"""A controller with many servers and buckets, in one process and virtual time: its processor time.

Knows: the servers' immediate replies, a metadata store in a dictionary, which phases are timed. Does not
know: sockets, real servers, plots.

Servers are only names: they send heartbeats, answer every request, and catch up in no time. So all processor
time is the controller's, plus the coding of its messages where that is counted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import log

import msgpack

from cotswold.bench.measure import Document, rounded
from cotswold.replication.controller.controller import Controller
from cotswold.replication.controller.leader_election import Read, StateRequest, Transact
from cotswold.replication.controller.messages import FromServers
from cotswold.replication.controller.settings import ControllerSettings
from cotswold.replication.replica.claims import ClaimsSender as KeeperClaims
from cotswold.wire import (
    Assign,
    Assigned,
    Create,
    DeleteRunRequest,
    Fence,
    FenceReply,
    Group,
    Heartbeat,
    LearnerCaughtUp,
    LeaseGrant,
    Send,
    ServerExited,
)
from cotswold.wire.codec import decode, encode
from cotswold.wire.names import bucket_of

RUN = "run"
COPIES, BUCKETS_A_SERVER, BEATS_A_SECOND = 3, 100, 10
TICK_SECONDS = 0.02
STATE_SECONDS = 0.003
"""Seconds of a transaction of the metadata store: slightly more than etcd takes with three members on one
host."""


@dataclass
class Cost:
    """Cost of one phase."""

    cpu_seconds: float = 0.0
    """Processor seconds of everything but heartbeats."""
    longest_seconds: float = 0.0
    """Longest time without a reply to a heartbeat."""
    beat_seconds: float = 0.0
    """Processor seconds of heartbeats."""
    transactions: int = 0
    keys: int = 0
    """Number of keys put or deleted."""
    bytes: int = 0
    """Bytes of these keys and their values."""
    messages: int = 0
    """Number of messages from the controller."""

    @property
    def as_dict(self) -> dict[str, object]:
        """Return all figures by name, and the seconds that etcd would take."""
        return {
            "cpu_seconds": rounded(self.cpu_seconds),
            "longest_seconds": rounded(self.longest_seconds),
            "transactions": self.transactions,
            "keys": self.keys,
            "bytes": self.bytes,
            "messages": self.messages,
            "state_seconds": rounded(STATE_SECONDS * self.transactions),
        }


@dataclass
class ControllerBench:
    """A controller, its metadata store and its servers."""

    servers: int
    items: dict[str, str] = field(default_factory=dict)
    name: str = "one"
    now: float = 100.0

    def __post_init__(self) -> None:
        self.controller = Controller(
            self.name, ControllerSettings(replication_factor=COPIES), self.now, "measured"
        )
        self.names = [f"server-{number:04}" for number in range(self.servers)]
        self.spent = Cost()
        self._clock = time.process_time
        self._inbox: list[tuple[str, FromServers]] = []
        self._numbers, self._answered = Counter[str](), Counter[str]()
        self._claims: dict[str, KeeperClaims] = {}

    def begin(self) -> Cost:
        """Start a new account, which later work adds to."""
        self.spent = Cost()
        return self.spent

    def go_on(self, until: Callable[[], bool], beats: bool = True, seconds: float = 600.0) -> None:
        """Step until the condition holds. Raises AssertionError if it does not hold after ``seconds``."""
        last = self.now + seconds
        while not until():
            assert self.now < last, f"the condition does not hold after {seconds:g} s"
            self.step(beats)

    def live(self, seconds: float) -> None:
        """Step for a number of virtual seconds."""
        until = self.now + seconds
        self.go_on(lambda: self.now >= until)

    def step(self, beats: bool) -> None:
        """Advance one tick, with the heartbeats of the servers due in it."""
        self.now += TICK_SECONDS
        if beats:
            every = round(1 / BEATS_A_SECOND / TICK_SECONDS)
            turn = round(self.now / TICK_SECONDS) % every
            heard = [(name, self.here(name)) for name in self.names[turn::every]]
            began = self._clock()
            sends = [send for each in heard for send in self.controller.receive(*each, self.now)]
            self.spent.beat_seconds += self._clock() - began
            self._answer(sends)
        inbox, self._inbox = self._inbox, []
        for sender, message in inbox:
            self.tell(sender, message)
        self._answer(self._timed(lambda: self.controller.tick(self.now)))
        while (wish := self._wish()) is not None:
            self._answer(self._asked(wish))

    def _wish(self) -> StateRequest | None:
        began = self._clock()
        wish = self.controller.next_request(self.now)
        self.spent.cpu_seconds += self._clock() - began
        return wish

    def tell(self, sender: str, message: FromServers) -> None:
        """Deliver a message to the controller."""
        self._answer(self._timed(lambda: self.controller.receive(sender, message, self.now)))

    def here(self, name: str) -> Heartbeat:
        """Return the heartbeat of a server, which claims the buckets that the map assigns to it."""
        self._numbers[name] += 1
        known = self.controller.servers.of.get(name)
        found = (self.controller.groups.get(each) for each in known.leads) if known is not None else ()
        leads = tuple((each.bucket, each.term) for each in found if each is not None and each.primary == name)
        number, claims = self._numbers[name], self._claims.setdefault(name, KeeperClaims())
        said, heard = claims.claims_to_send(leads, number), self._answered[name]
        address = f"tcp://{name}:1"
        return Heartbeat(name, name, address, number, said, runs=(RUN,), claims=claims.number, answered=heard)

    def _asked(self, wish: StateRequest) -> list[Send]:
        """Return the controller's messages after an immediate reply of the metadata store."""
        if isinstance(wish, Read):
            self.spent.transactions += 1
            found = wish.of(self.items)
            return self._timed(lambda: self.controller.on_read(found, self.now))
        is_done = self._done(wish)
        return self._timed(lambda: self.controller.on_transaction(is_done, self.now))

    def _done(self, wish: Transact) -> bool:
        if any(self.items.get(key) != value for key, value in wish.compare):
            return False
        self.spent.transactions += 1
        for key, value in wish.put:
            self.spent.keys += 1
            self.spent.bytes += len(key) + len(value or "")
            self.items.pop(key, None)
            if value is not None:
                self.items[key] = value
        return True

    def _timed(self, action: Callable[[], list[Send]]) -> list[Send]:
        began = self._clock()
        sends = action()
        seconds = self._clock() - began
        self.spent.cpu_seconds += seconds
        self.spent.longest_seconds = max(self.spent.longest_seconds, seconds)
        self.spent.messages += len(sends)
        return sends

    def _answer(self, sends: Iterable[Send]) -> None:
        """Queue the servers' replies for the next tick."""
        for each in sends:
            match each.message:
                case Fence(_, bucket, term):
                    answer = FenceReply(bucket, term, each.to, term - 1, 7)
                    self._inbox.append((each.to, answer))
                case Assign(_, group, number):
                    self._inbox.append((each.to, Assigned(group.bucket, group.term, each.to, number)))
                    if each.to == group.primary:
                        self._inbox += [(each.to, self._caught(group, one)) for one in group.learners]
                case LeaseGrant(_, server, number, seconds):
                    self._claims[server].leased(number, seconds)
                    self._answered[server] = number
                case _:
                    pass

    @staticmethod
    def _caught(group: Group, learner: str) -> LearnerCaughtUp:
        return LearnerCaughtUp(group.bucket, group.term, group.primary, learner)


def lives(servers: int, seconds: float) -> Document:
    """Return the cost of each phase with a number of servers, each the primary of a hundred buckets."""
    rig = ControllerBench(servers)
    rig.go_on(lambda: len(rig.controller.servers.live) == servers)
    found: dict[str, object] = {"servers": servers, "buckets": BUCKETS_A_SERVER * servers}
    found["create"] = _create(rig, BUCKETS_A_SERVER * servers)
    rig.live(2.0)  # every server has received and confirmed the map
    beats = rig.begin()
    rig.live(seconds)
    found["beats_cpu_seconds"] = rounded((beats.beat_seconds + beats.cpu_seconds) / seconds)
    found["reading_cpu_seconds"] = rounded(_reading(rig) * servers * BEATS_A_SECOND)
    found["death"] = _death(rig)
    found["load"] = _load(rig)
    removal = rig.begin()
    rig.tell("client", DeleteRunRequest(RUN))
    rig.go_on(lambda: not rig.controller.groups)
    found["remove"] = removal.as_dict
    return found


def _create(rig: ControllerBench, buckets: int) -> Document:
    """Create buckets, with requests repeated as often as needed."""
    wanted = Create(RUN, "what they hold", tuple(bucket_of(RUN, each) for each in range(buckets)), 1)
    spent = rig.begin()
    while len(rig.controller.groups) < buckets:
        rig.tell("client", wanted)
        rig.live(0.25)
    return spent.as_dict


def _reading(rig: ControllerBench) -> float:
    """Return processor seconds of decoding a heartbeat and encoding its reply."""
    here, answer = rig.here(rig.names[0]), LeaseGrant(1, rig.names[0], 1, 1.0)
    header, buffers = encode(here)
    times = 200
    began = time.process_time()
    for _ in range(times):
        decode(msgpack.unpackb(header, strict_map_key=False), buffers)
        encode(answer)
    return (time.process_time() - began) / times


def _death(rig: ControllerBench) -> Document:
    """Let a server exit, and step until every bucket of the server has as many copies as before."""
    victim = rig.names.pop(len(rig.names) // 2)
    known = rig.controller.servers.of[victim]
    had = {"copies": len(known.copies), "leads": len(known.leads)}
    began, spent = rig.now, rig.begin()
    rig.tell("supervisor", ServerExited(victim, "killed by signal 9"))
    rig.go_on(
        lambda: not (known.copies or rig.controller.unsettled_buckets or rig.controller.under_replicated)
    )
    return {**spent.as_dict, **had, "virtual_seconds": rounded(rig.now - began)}


def _load(rig: ControllerBench) -> Document:
    """Let another controller become leader, read the metadata store, and inform every server."""
    other = ControllerBench(len(rig.names), dict(rig.items), "two", rig.now)
    other.names = rig.names
    loading = other.begin()
    other.go_on(lambda: other.controller.leads(other.now), beats=False)
    telling = other.begin()
    other.live(3.0)
    told = rounded(telling.cpu_seconds + telling.beat_seconds)
    return {**loading.as_dict, "telling_cpu_seconds": told, "told": telling.messages}


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the power of the size with which a value grows: the slope of a line through the logarithms."""
    x, y = [log(each) for each in sizes], [log(max(each, 1e-9)) for each in values]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    upper = sum((one - mean_x) * (other - mean_y) for one, other in zip(x, y, strict=True))
    return upper / sum((one - mean_x) ** 2 for one in x)


def summary(found: Sequence[Document]) -> Document:
    """Return a row of figures for each size, and the power with which each figure grows."""
    rows = [
        {
            "servers": each["servers"],
            "beats_a_second": each["beats_cpu_seconds"],
            "with_messages": rounded(
                float(str(each["beats_cpu_seconds"])) + float(str(each["reading_cpu_seconds"]))
            ),
            "create": _of(each, "create", "cpu_seconds"),
            "death": _of(each, "death", "cpu_seconds"),
            "death_transactions": _of(each, "death", "transactions"),
            "load": _of(each, "load", "cpu_seconds"),
            "telling": _of(each, "load", "telling_cpu_seconds"),
            "remove": _of(each, "remove", "cpu_seconds"),
            "create_transactions": _of(each, "create", "transactions"),
        }
        for each in found
    ]
    sizes = [float(str(each["servers"])) for each in rows]
    exponents = {
        name: round(exponent(sizes, [float(str(each[name])) for each in rows]), 2)
        for name in rows[0]
        if name != "servers" and len(set(sizes)) > 1
    }
    return {"table": rows, "exponents": exponents}


def _of(found: Document, part: str, name: str) -> object:
    inner = found[part]
    assert isinstance(inner, dict), "a part is a document"
    return inner[name]
