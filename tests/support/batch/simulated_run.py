"""A seeded life of a simulated cluster: lost, late and repeated messages; killed, stopped and started
workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from random import Random

from tests.support.batch.checker import Truth, check

from cotswold.batch.core.coordinator import Coordinator
from cotswold.batch.core.requests import EvaluationRequest, EvaluationResult
from cotswold.batch.core.rounds import RoundOutcome
from cotswold.batch.core.settings import EvaluationSettings
from cotswold.optim.vectors.base import Combine, Command, Dot
from cotswold.shards.core.permutation import PortionPermutation
from cotswold.shards.core.shard_server import ShardServer
from cotswold.simulate.protocols.lists import ListArithmetic
from cotswold.simulate.protocols.loop import VirtualTimeLoop
from cotswold.simulate.protocols.network import Faults, SimulatedNetwork
from cotswold.simulate.protocols.protocol_processes import (
    Collectives,
    Portion,
    SimulatedCoordinator,
    SimulatedServer,
    SimulatedWorker,
)
from cotswold.wire import COORDINATOR, PortionResult, ReductionSchedule, Shard, Write


def shards(size: int, of_one: int, servers: int) -> list[Shard]:
    """Return the flat vector in ranges, dealt to servers in turn."""
    return [
        Shard(number, f"server {number % servers}", start, min(start + of_one, size), "", 0)
        for number, start in enumerate(range(0, size, of_one))
    ]


def star(names: Sequence[str]) -> ReductionSchedule:
    """Return a plan without steps: simulated workers only meet."""
    return ReductionSchedule(tuple(names), ())


@dataclass(frozen=True)
class World:
    """Settings of a trial."""

    rules: EvaluationSettings
    servers: int = 2
    workers: int = 3
    faults: Faults | None = None
    keeps: bool = False
    """True if workers keep x and d, and d is broadcast."""
    deaths: float = 0.0
    """Kills per second, over all workers; likewise the next three rates."""
    pauses: float = 0.0
    arrivals: float = 0.0
    departures: float = 0.0
    fraction: float = 1.0
    whole: bool = True
    """True if portions sum to whole numbers."""
    speeds: tuple[float, ...] = ()
    """Constant seconds of a portion on each worker [random]."""
    restarts: bool = True
    """True to keep at least one worker alive."""


class Trial:
    """One life."""

    def __init__(self, seed: int, world: World) -> None:
        self.random, self.world, self.loop = Random(seed), world, VirtualTimeLoop()
        rules = world.rules
        self.network = SimulatedNetwork(self.loop, self.random, world.faults, latency_seconds=0.001)
        self.truth = Truth(rules.permutation, rules.size, seed, whole=world.whole)
        self.meetings = Collectives(self.network)
        self.shards = shards(rules.size, 2, world.servers)
        names = [f"server {number}" for number in range(world.servers)]
        self.servers = [ShardServer(name, self.shards, ListArithmetic()) for name in names]
        for server in self.servers:
            self.network.endpoints[server.name] = SimulatedServer(self.network, server)
        coordinator = Coordinator(rules, self.shards, [(name, name) for name in names], star, 0.0)
        self.coordinator = SimulatedCoordinator(self.network, coordinator)
        self.network.endpoints[COORDINATOR] = self.coordinator
        self.point = [float(place) for place in range(rules.size)]
        self.direction = [1.0] * rules.size
        self._write("x", self.point)
        self._write("d", self.direction)
        self.workers: dict[str, SimulatedWorker] = {}
        self.started = 0
        for _ in range(world.workers):
            self.start()
        self._chance()

    # --- faults of workers ---

    def start(self) -> SimulatedWorker:
        self.started += 1
        speeds = self.world.speeds or (self.random.choice((0.1, 0.1, 0.1, 0.4)),)
        speed = speeds[(self.started - 1) % len(speeds)]
        name = f"worker {self.started}"
        self.workers[name] = SimulatedWorker(
            self.network,
            self.meetings,
            name,
            self.shards,
            self.world.rules.permutation.samples,
            self._portion(speed),
            lambda portion: speed * (1 if self.world.speeds else self.random.uniform(0.5, 1.5)),
        )
        return self.workers[name]

    def arrive(self) -> None:
        self.start()

    def _portion(self, seconds: float) -> Portion:
        def portion(number: int, point: Sequence[float]) -> tuple[PortionResult, list[float]]:
            result, gradient = self.truth(number, point)
            return replace(result, seconds=seconds), gradient

        return portion

    def kill(self, worker: SimulatedWorker) -> None:
        worker.kill()
        self.loop.schedule(0.05, lambda: self.coordinator.handle_end(worker.name, "killed by signal 9"))

    def _chance(self) -> None:
        """Draw the faults of a tenth of a second."""
        world, random = self.world, self.random
        alive = [worker for worker in self.workers.values() if worker.is_alive]
        if alive and random.random() < world.deaths / 10:
            self.kill(random.choice(alive))
        if alive and random.random() < world.pauses / 10:
            paused = random.choice(alive)
            paused.pause()
            self.loop.schedule(random.uniform(0.1, 8), paused.resume)
        if alive and random.random() < world.departures / 10:
            random.choice(alive).leave()
        if (world.restarts and not alive) or random.random() < world.arrivals / 10:
            self.start()
        self.loop.schedule(0.1, self._chance)

    # --- requests ---

    def run(self, *commands: Command) -> RoundOutcome:
        self.coordinator.run(commands)
        outcome = self._outcome()
        assert isinstance(outcome, RoundOutcome)
        return outcome

    def evaluate(
        self, number: int, *, gradient: bool = True, portions: tuple[int, ...] | None = None
    ) -> EvaluationResult:
        """Run and check one evaluation at x + (number % 2) · d."""
        wanted = portions or self.world.rules.permutation.draw(number, self.world.fraction)
        step = float(number % 2)
        make = Combine("at", ((1.0, "x"), (step, "d")))
        kept = {"keeps": ("x", "d"), "changed": ("d",), "local": (make,)} if self.world.keeps else {}
        after = (Dot("g", "d"),) if gradient else ()
        self.coordinator.evaluate(
            EvaluationRequest(
                "at",
                "g" if gradient else None,
                before=(make,),
                after=after,
                portions=portions,
                cycle=number,
                fraction=self.world.fraction,
                **kept,  # type: ignore[arg-type]  # names and commands, as they are declared above
            )
        )
        counted = self._outcome()
        assert isinstance(counted, EvaluationResult), counted
        point = [each + step * other for each, other in zip(self.point, self.direction, strict=True)]
        found = self.vector("g") if gradient else None
        check(self.truth, wanted, point, counted, found, tree=self.world.rules.tree)
        assert all(server.pending == 0 for server in self.servers), "nothing is left on the servers"
        return counted

    def vector(self, name: str) -> list[float]:
        """Return a vector on the servers."""
        values = [0.0] * self.world.rules.size
        for server in self.servers:
            for shard, part in zip(server.shards, server._vectors[name], strict=True):
                values[shard.start : shard.stop] = part
        return values

    def _write(self, name: str, values: list[float]) -> None:
        for server in self.servers:
            parts = tuple(tuple(values[shard.start : shard.stop]) for shard in server.shards)
            server.receive(COORDINATOR, Write(1, name, server.numbers, parts))

    def _outcome(self) -> RoundOutcome | EvaluationResult:
        found = self.loop.run(lambda: self.coordinator.outcome is not None, seconds=600, events=300_000)
        trouble = self.coordinator.coordinator.failure(self.loop.now)
        assert found, f"nothing came of it by {self.loop.now:.1f} s: {trouble}"
        outcome = self.coordinator.outcome
        assert outcome is not None
        return outcome


def rules(
    portions: int = 20,
    size: int = 6,
    *,
    seed: int = 0,
    pushes: bool = True,
    tree: bool = False,
    **more: object,
) -> EvaluationSettings:
    """Return the settings of a small cluster with short timeouts."""
    dealing = PortionPermutation(seed, samples=3 * portions - 1, portion=3)
    settings = {
        "silent_seconds": 3.0,
        "retry_seconds": 0.5,
        "beat_seconds": 0.25,
        "flush_seconds": 0.3 if pushes else inf,
        "deaths": 99,
        **more,
    }
    return EvaluationSettings(dealing, size, pushes=pushes, tree=tree, **settings)  # type: ignore[arg-type]  # a test's own
