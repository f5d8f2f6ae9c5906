"""Size of the reports of servers and the coordinator while an early range stays open."""

from __future__ import annotations

from cotswold.paramserver.core.dispatcher import Dispatcher
from cotswold.paramserver.core.sessions import Sessions
from cotswold.paramserver.core.settings import DispatcherSettings
from cotswold.paramserver.core.shard_metadata import ShardMetadata
from cotswold.shards.core.sample_ledger import SampleLedger
from cotswold.wire import (
    Applied,
    CoordinatorState,
    CoordinatorStateAck,
    Join,
    ReplicaHeartbeat,
    ReplicaInstructions,
    Shard,
)
from cotswold.wire.ranges import add, size, union

_SAMPLES, _HAND = 4000, 4
_NAMES = ("fast", "quick", "slow")
_ANSWER = Applied(1, "a", 1, (), (), 0)


class Server:
    """Sessions that apply all samples of a replica, and their replies to orders."""

    def __init__(self, name: str) -> None:
        self.name, self.sessions = name, Sessions("run")
        self.freezes = True

    def obey(self, order: CoordinatorState, saved: int | None = None) -> CoordinatorStateAck:
        self.sessions.set_live(dict(order.sessions), 0, is_freezing=False)
        self.sessions.settle(order.settled)
        frozen = order.checkpoint if self.freezes else 0
        return CoordinatorStateAck(
            order.number, self.name, self.sessions.report(order.recorded), frozen, 0, durable_state=saved
        )


class Training:
    """Two servers and three replicas, of which ``slow`` never pushes."""

    def __init__(self) -> None:
        rules = DispatcherSettings("run", _SAMPLES, 4, 1, 0.5, _HAND, 2 * _HAND)
        shards = [Shard(0, "a", 0, 2, "", 0), Shard(1, "b", 2, 4, "", 0)]
        self.dispatcher = Dispatcher(rules, shards, [(name, "") for name in "ab"], 0.0)
        self.servers = [Server(name) for name in "ab"]
        self.now, self.hands = 0.0, dict.fromkeys(_NAMES, 0)
        self.orders: list[CoordinatorState] = []
        self.longest = 0
        """Largest number of ranges in an order, in a reply, or in a server's state."""
        for name in _NAMES:
            self.dispatcher.receive(name, Join(name, 0, "", _SAMPLES, 4), 0.0)
        self.order()
        self.session_of = {name: number for number, name in self.dispatcher._acknowledged_state.sessions}

    def order(self, saved: int | None = None) -> None:
        self.now += 1.0
        for member in self.dispatcher.members:
            member.last_heartbeat = self.now
        sends = self.dispatcher.tick(self.now)
        order = next(send.message for send in sends if isinstance(send.message, CoordinatorState))
        self.orders.append(order)
        for server in self.servers:
            answer = server.obey(order, saved)
            self.dispatcher.receive(server.name, answer, self.now)
            told = sum(len(applied) for _, applied, _ in answer.samples)
            kept = sum(len(session.samples) for _, session in server.sessions)
            self.longest = max(
                self.longest,
                told,
                len(order.recorded) + len(order.settled_above),
                kept * (saved is None and server.freezes),
            )

    def train(self, name: str) -> None:
        """Request samples for a replica, and push them at once unless it is the slow one."""
        session = self.session_of[name]
        sends = self.dispatcher.receive(name, ReplicaHeartbeat(session, self.hands[name], 0), self.now)
        for send in sends:
            given = send.message.assignments if isinstance(send.message, ReplicaInstructions) else ()
            for number, start, stop in given:
                self.hands[name] = number
                for server in self.servers if name != "slow" else ():
                    server.sessions.of(session).record_applied(((start, stop),), _ANSWER)

    def run(self, rounds: int, saved: int | None = None) -> None:
        self.train("slow")
        for _ in range(rounds):
            for name in ("fast", "quick") * 2:
                self.train(name)
            self.order(saved)


def test_an_order_and_its_answers_name_few_ranges_while_an_early_one_is_open() -> None:
    training = Training()
    training.run(100)
    assert training.dispatcher.ledger.total.counted == 99 * 4 * _HAND + 4 * _HAND
    assert training.longest <= 8, f"{training.longest} ranges, of 400 that were handed out"


def test_answers_name_few_ranges_while_no_disk_has_what_counts() -> None:
    training = Training()
    training.run(100, saved=0)
    assert training.dispatcher.ledger.total.counted == 100 * 4 * _HAND
    assert training.longest <= 8, f"{training.longest} ranges, of 400 that were handed out"


def test_answers_name_few_ranges_while_a_checkpoint_is_open() -> None:
    training = Training()
    training.dispatcher.begin_checkpoint()
    for server in training.servers:
        server.freezes = False
    training.run(100)
    assert training.dispatcher.is_freezing
    assert training.dispatcher.ledger.total.counted == 100 * 4 * _HAND
    assert training.longest <= 8, f"{training.longest} ranges, of 400 that were handed out"


def test_all_orders_of_a_checkpoint_name_the_places_that_were_known_when_it_began() -> None:
    """A server that missed the first order leaves out no more of its state than the others."""
    training = Training()
    training.run(2)
    training.dispatcher.begin_checkpoint()
    for server in training.servers:
        server.freezes = False
    training.run(5)
    of_checkpoint = [each for each in training.orders if each.checkpoint]
    assert len(of_checkpoint) >= 4 and {each.recorded_at_checkpoint for each in of_checkpoint} == {
        of_checkpoint[0].recorded
    }
    assert size(of_checkpoint[-1].recorded) > size(of_checkpoint[-1].recorded_at_checkpoint) > 0
    books: ShardMetadata[object] = ShardMetadata.__new__(ShardMetadata)
    books.coordinator_state = of_checkpoint[-1]
    assert books.recorded_at(of_checkpoint[0].checkpoint) == of_checkpoint[0].recorded
    assert books.recorded_at(of_checkpoint[0].checkpoint - 1) == ()


def test_what_many_servers_say_alike_is_folded_once() -> None:
    ledger, folds = SampleLedger(1000), []

    class Counted(tuple[tuple[int, int], ...]):
        def __iter__(self):  # type: ignore[no-untyped-def]  # of ints
            folds.append(1)
            return super().__iter__()

    ledger.assign(1, 10)
    ledger.record_report(1, [(Counted(((0, 6),)), Counted())] * 64)
    assert ledger.total.counted == 6 and len(folds) < 10


def test_a_range_is_added_to_others_as_if_all_were_joined() -> None:
    ranges = ((0, 3), (5, 6), (8, 9), (12, 20))
    for start in range(21):
        for stop in range(start + 1, 22):
            more = ((start, stop),)
            assert add(ranges, more) == union(ranges, more)
    assert size(add((), ((1, 2), (2, 4)))) == 3 and add(ranges, ()) == ranges
