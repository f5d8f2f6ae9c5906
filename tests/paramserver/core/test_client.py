"""Clients with their own samples: their state machine with real servers' and the coordinator's, over a
network that loses, duplicates and reorders."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from cotswold import wire as m
from cotswold.optim.server_rules import Rule, Sgd
from cotswold.paramserver.core.client import ClientSession, ClientState
from cotswold.paramserver.core.client_ledger import ANY, ClientLedger
from cotswold.paramserver.core.dispatcher import Dispatcher
from cotswold.paramserver.core.settings import AsyncSettings, DispatcherSettings, QueueLimits
from cotswold.paramserver.core.staleness import Staleness
from cotswold.paramserver.core.update_sequence import ServerUpdate
from cotswold.paramserver.core.update_server import UpdateServer
from cotswold.shards.core.shard_server import ShardServer
from cotswold.simulate.protocols.lists import ListArithmetic, ListUpdates

SHARDS = (m.Shard(0, "s0", 0, 2, "w", 0), m.Shard(1, "s1", 2, 4, "w", 1))
SAMPLES = 3


class World:
    """Two servers, the coordinator, and clients; messages are delivered in random order."""

    def __init__(
        self, seed: int, *, faults: float = 0.0, rule: Rule | None = None, staleness: Staleness | None = None
    ) -> None:
        self.random, self.faults, self.now = Random(seed), faults, 0.0
        settings = AsyncSettings(
            *("run", "x", rule or Sgd(), {"w": 2}, 8),
            room=QueueLimits(64, 64),
            staleness=staleness or Staleness(),
        )
        self.servers = {name: ShardServer(name, SHARDS, ListArithmetic()) for name in ("s0", "s1")}
        self.updates = {}
        for name, server in self.servers.items():
            server.receive(m.COORDINATOR, m.Write(1, "x", server.numbers, ((0.0, 0.0),)))
            self.updates[name] = UpdateServer(server, settings, ListArithmetic(), ListUpdates())
        rules = DispatcherSettings(
            "run",
            ANY,
            4,
            1,
            1.0,
            assignment_samples=1,
            assignments_ahead=1,
            silent_seconds=5.0,
            retry_seconds=0.5,
        )
        self.ledger = ClientLedger()
        self.dispatcher = Dispatcher(rules, SHARDS, [("s0", "s0"), ("s1", "s1")], 0.0, self.ledger)
        self.visitors: dict[str, ClientSession] = {}
        self.way: list[tuple[str, m.Send]] = []

    def arrive(self, name: str) -> ClientSession:
        self.visitors[name] = ClientSession(m.Join(name, 0, name, ANY, 4))
        return self.visitors[name]

    def send(self, sender: str, sends: list[m.Send]) -> None:
        for each in sends:
            if self.random.random() >= self.faults:
                self.way.append((sender, each))
            if self.random.random() < self.faults:
                self.way.append((sender, each))

    def step(self) -> None:
        """Advance time and deliver a message."""
        self.now += 0.01
        if self.way:
            place = self.random.randrange(len(self.way)) if self.faults else 0
            self.arrived(*self.way.pop(place))
        for name, updates in self.updates.items():
            if self.random.random() < 0.3:
                self.send(name, updates.drain())
        self.send(m.COORDINATOR, self.dispatcher.tick(self.now))
        for name, visitor in self.visitors.items():
            self.send(name, visitor.tick(self.now))

    def arrived(self, sender: str, sent: m.Send) -> None:
        message = sent.message
        if sent.to == m.COORDINATOR:
            assert isinstance(message, m.FromReplica | m.CoordinatorStateAck)
            self.send(m.COORDINATOR, self.dispatcher.receive(sender, message, self.now))
        elif sent.to in self.updates:
            assert isinstance(message, m.ToUpdates)
            self.send(sent.to, self.updates[sent.to].receive(sender, message))
        elif sent.to in self.visitors:
            assert isinstance(message, m.ToReplica)
            self.send(sent.to, self.visitors[sent.to].receive(sender, message, self.now))

    def until(self, holds: Callable[[], object], seconds: float = 60.0) -> None:
        deadline = self.now + seconds
        while not holds():
            assert self.now < deadline, {name: each.state for name, each in self.visitors.items()}
            self.step()

    def pull(self, visitor: ClientSession) -> None:
        self.send(visitor.name, visitor.pull(self.now))
        self.until(lambda: not visitor.is_pulling)

    def push(self, visitor: ClientSession, numbers: tuple[float, ...] = (1.0, 1.0)) -> None:
        """Push a one for every number."""
        parts = {
            name: ServerUpdate("gradient", (number,), (), (numbers,))
            for number, name in enumerate(self.updates)
        }
        self.send(visitor.name, visitor.push(parts, dict(visitor.versions), SAMPLES, self.now))

    def here(self, name: str) -> ClientSession:
        visitor = self.arrive(name)
        self.until(lambda: visitor.state is ClientState.JOINED)
        return visitor

    @property
    def applied(self) -> list[float]:
        """Return the number of pushes of ones that each server has received."""
        return [-server.vectors["x"][0][0] for server in self.servers.values()]


@pytest.mark.parametrize("seed", range(20))
def test_each_push_counts_once_whatever_is_lost_doubled_or_late(seed: int) -> None:
    world = World(seed, faults=0.2)
    visitors = [world.arrive(f"client-{number}") for number in range(3)]
    pushed = 0
    while pushed < 30:
        assert world.now < 100, "it goes on"
        for visitor in visitors:
            if visitor.state is ClientState.JOINED and not visitor.is_pushing and visitor.outcome is None:
                if min(visitor.versions.values()) < 0:
                    world.pull(visitor)
                world.push(visitor)
                pushed += 1
            elif visitor.outcome is not None:
                assert not visitor.outcome.refused and not visitor.outcome.lost
                visitor.outcome = None
        world.step()
    world.until(lambda: not any(each.is_pushing for each in visitors))
    assert world.applied == [pushed, pushed]
    world.faults = 0.0
    world.until(lambda: world.ledger.total.counted == SAMPLES * pushed)
    assert world.ledger.total.torn == world.ledger.total.refused == 0


@pytest.mark.parametrize("seed", range(20))
def test_the_account_knows_what_every_server_has_of_a_client_that_was_killed(seed: int) -> None:
    world = World(seed, faults=0.1)
    counted = 0
    for number in range(6):
        visitor = world.here(f"client-{number}")
        world.pull(visitor)
        world.push(visitor)
        world.until(lambda: visitor.outcome is not None)  # noqa: B023  # it is called at once
        counted += 1
        world.push(visitor)
        for _ in range(world.random.randrange(12)):
            world.step()
        del world.visitors[visitor.name]  # killed while it pushes
        world.dispatcher.on_exit(visitor.name, "it was killed")
    world.faults = 0.0
    world.until(lambda: not world.dispatcher.is_settling and not world.way)
    total = world.ledger.total
    assert total.counted >= SAMPLES * counted
    assert 2 * total.counted + total.torn == SAMPLES * sum(world.applied)  # torn: on one of both


def test_who_was_silent_joins_anew_and_what_it_pushed_late_is_refused() -> None:
    world = World(1)
    visitor = world.here("client")
    world.pull(visitor)
    session = visitor.session
    world.push(visitor)
    updates = [each for each in world.way if isinstance(each[1].message, m.Update)]
    world.way = []
    held, world.visitors = world.visitors, {}  # it is stopped, and its update is on the way
    for _ in range(700):
        world.step()
    world.visitors = held
    for sender, sent in updates:
        world.arrived(sender, sent)
    world.until(lambda: visitor.sessions == 2 and visitor.state is ClientState.JOINED)
    assert visitor.session > session and visitor.outcome is not None and visitor.outcome.lost
    assert world.applied == [0, 0]
    assert all(each.rejections.keys() == {"session"} for each in world.updates.values())
    world.pull(visitor)
    world.push(visitor)
    world.until(lambda: visitor.outcome is not None and not visitor.outcome.lost)
    assert world.applied == [1, 1]


def test_names_of_sessions_that_are_settled_are_forgotten() -> None:
    world = World(4)
    sessions = []
    for number in range(20):
        visitor = world.here(f"client-{number}")
        sessions.append(visitor.session)
        world.send(visitor.name, visitor.leave("it is done"))
        world.until(lambda: visitor.is_gone and not world.dispatcher.is_settling)  # noqa: B023  # called at once
    assert not world.dispatcher.members._attempts
    assert sessions == list(range(1, 21))


def test_what_is_refused_is_known_with_its_reason_and_counted() -> None:
    world = World(2)
    visitor = world.here("client")
    world.pull(visitor)
    world.push(visitor, (float("nan"), 1.0))
    world.until(lambda: visitor.outcome is not None)
    assert visitor.outcome is not None
    assert {each.reason.split()[0] for each in visitor.outcome.refused.values()} == {"finite:"}
    world.push(visitor)
    world.until(lambda: world.ledger.total.counted == SAMPLES)
    assert world.ledger.total.refused == SAMPLES and world.applied == [1, 1]


def test_markers_go_between_pushes_and_cut_all_servers_at_the_same_place() -> None:
    world = World(3)
    visitors = [world.here(f"client-{number}") for number in range(2)]
    for visitor in visitors:
        world.pull(visitor)
    world.push(visitors[0])
    numbers: list[int] = []
    world.dispatcher.begin_checkpoint()
    while world.dispatcher.is_freezing:
        assert world.now < 100, "markers come"
        world.step()
        for visitor in visitors:
            if visitor.outcome is not None:
                numbers.append(visitor.outcome.number)
                visitor.outcome = None
                world.push(visitor)
    assert numbers == list(range(1, len(numbers) + 1)), "markers are no pushes"
    world.until(lambda: visitors[0].outcome is not None)
    assert visitors[0].outcome is not None and visitors[0].outcome.number == len(numbers) + 1
    frozen = [each.frozen for each in world.updates.values()]
    assert all(each is not None for each in frozen)
    cut = [each.vectors["x"][0][0] for each in frozen if each is not None]
    assert cut[0] == cut[1] <= 0


def test_pushes_are_numbered_on_in_the_next_session() -> None:
    world = World(4)
    visitor = world.here("client")
    world.pull(visitor)
    for number in (1, 2):
        world.push(visitor)
        world.until(lambda: visitor.outcome is not None)
        assert visitor.outcome is not None and visitor.outcome.number == number
        world.send("client", visitor.receive(m.COORDINATOR, m.SessionExpired(visitor.session), world.now))
        world.until(lambda: visitor.state is ClientState.JOINED)
