"""A seeded life of replicas and servers: lost, late and repeated messages; killed, stopped and started
replicas."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from tests.support.batch.simulated_run import shards

from cotswold.optim.server_rules import Rule, Sgd
from cotswold.paramserver.core.dispatcher import Dispatcher
from cotswold.paramserver.core.dispatcher_state import DispatcherState
from cotswold.paramserver.core.replica_session import Pace
from cotswold.paramserver.core.settings import AsyncSettings, DispatcherSettings, QueueLimits
from cotswold.paramserver.core.staleness import Staleness
from cotswold.paramserver.core.update_server import UpdateServer
from cotswold.shards.core.sample_ledger import SampleLedger, SampleReport
from cotswold.shards.core.shard_server import ShardServer
from cotswold.simulate.protocols.lists import ListArithmetic, ListUpdates
from cotswold.simulate.protocols.loop import VirtualTimeLoop
from cotswold.simulate.protocols.network import Faults, SimulatedNetwork
from cotswold.simulate.protocols.replicas import (
    Gradient,
    SimulatedDispatcher,
    SimulatedReplica,
    SimulatedUpdateServer,
)
from cotswold.wire import COORDINATOR, Join, Ranges, Write
from cotswold.wire.ranges import intersection, size, union

SIZE, SAMPLES, SERVERS = 6, 40, 2


@dataclass(frozen=True)
class World:
    """Settings of a trial."""

    pace: Pace
    replicas: int = 3
    faults: Faults | None = None
    deaths: float = 0.0
    """Kills per second, over all replicas; likewise the next three rates."""
    pauses: float = 0.0
    arrivals: float = 0.0
    departures: float = 0.0
    checkpoints: float = 0.0
    """Checkpoints started per second."""
    staleness: Staleness = Staleness()  # noqa: RUF009  # it is frozen
    room_bytes: int = 1000
    drain_seconds: float = 0.05
    rule: Rule = Sgd()  # noqa: RUF009  # it is frozen
    kind: str = "gradient"
    epochs: int = 2
    fraction: float = 0.75
    of: str = "samples"
    warm_samples: int = 0
    ranks: int = 1
    """Ranks of each replica."""
    nan: float = 0.0
    """Fraction of samples without a finite gradient."""


class Recorded(SampleLedger):
    """A ledger that records the outcome of samples, and the samples of each server."""

    def __init__(self, samples: int, epoch: int = 0) -> None:
        super().__init__(samples, epoch)
        self.has: list[list[Ranges]] = [[] for _ in range(SERVERS)]
        """Applied samples of each server, a list of ranges for each (session, order)."""
        self.by: dict[str, list[Ranges]] = {}

    def record_report(self, session: int, servers: Sequence[SampleReport]) -> None:
        open = self.open_of(session)
        super().record_report(session, servers)
        settled = union(open)
        gone = tuple(each for each in _without(settled, self.open_of(session)))
        for own, (applied, _) in zip(self.has, servers, strict=True):
            own.append(intersection(gone, applied))

    def end_session(self, session: int, servers: Sequence[SampleReport], back: Ranges = ()) -> Ranges:
        self.record_report(session, servers)
        left = self.open_of(session)
        lost = super().end_session(session, servers, back)
        for own, (applied, _) in zip(self.has, servers, strict=True):
            own.append(intersection(left, applied))
        return lost

    def _settle(self, session: int, ranges: Ranges, how: str) -> Ranges:
        settled = super()._settle(session, ranges, how)
        self.by.setdefault(how, []).append(settled)
        return settled


def _without(left: Ranges, right: Ranges) -> Ranges:
    places = {place for start, stop in left for place in range(start, stop)}
    places -= {place for start, stop in right for place in range(start, stop)}
    return union([(place, place + 1) for place in places])


@dataclass(frozen=True)
class Saved:
    """A checkpoint."""

    ledger: Recorded
    weights: Mapping[str, tuple[tuple[float, ...], ...]]
    """Weights of each server's shards."""


class Trial:
    """One life."""

    def __init__(
        self, seed: int, world: World, gradient: Gradient | None = None, saved: Saved | None = None
    ) -> None:
        self.random, self.world, self.loop, self.seed = Random(seed), world, VirtualTimeLoop(), seed
        self.network = SimulatedNetwork(self.loop, self.random, world.faults, latency_seconds=0.001)
        self.shards = shards(SIZE, 2, SERVERS)
        self.gradient = gradient or self.whole
        names = [f"server {number}" for number in range(SERVERS)]
        settings = AsyncSettings(
            *("run", "weights", world.rule, {"": 2}, 8),
            room=QueueLimits(world.room_bytes, world.room_bytes),
            staleness=world.staleness,
            may_repeat_samples=True,
        )
        self.servers = [ShardServer(name, self.shards, ListArithmetic()) for name in names]
        self.updates: list[SimulatedUpdateServer] = []
        for server in self.servers:
            weights = tuple((0.0,) * (shard.stop - shard.start) for shard in server.shards)
            if saved is not None:
                weights = saved.weights[server.name]
            server.receive(COORDINATOR, Write(1, "weights", server.numbers, weights))
            updates = UpdateServer(server, settings, ListArithmetic(), ListUpdates())
            self.updates.append(
                SimulatedUpdateServer(self.network, updates, server.name, world.drain_seconds)
            )
        rules = DispatcherSettings(
            *("run", SAMPLES, SIZE, world.epochs, 1.0, 2 * world.pace.batch, world.pace.batch),
            fraction=world.fraction,
            of=world.of,
            warm_samples=world.warm_samples,
            state_seconds=0.3,
            beat_seconds=0.25,
            silent_seconds=3.0,
            retry_seconds=0.5,
        )
        self.ledger = Recorded(SAMPLES) if saved is None else saved.ledger
        self.dispatcher = Dispatcher(rules, self.shards, [(name, name) for name in names], 0.0, self.ledger)
        SimulatedDispatcher(self.network, self.dispatcher)
        self.saved: list[Saved] = []
        """Checkpoints taken."""
        self.replicas: list[SimulatedReplica] = []
        for _ in range(world.replicas):
            self.start()
        self.loop.schedule(0.1, self._chance)

    def whole(self, samples: tuple[int, int], weights: Sequence[float]) -> list[float]:
        """Return whole numbers that, except by rare chance, no two sets of samples share."""
        total = [0.0] * SIZE
        for place in range(*samples):
            random = Random(self.seed * 1_000_003 + place)
            if random.random() < self.world.nan:
                return [float("nan")] * SIZE
            total = [each + random.getrandbits(36) for each in total]
        return total

    # --- faults of replicas ---

    def start(self) -> SimulatedReplica:
        name = f"replica {len(self.replicas) + 1}"
        speed = self.random.choice((0.05, 0.1, 0.4))
        replica = SimulatedReplica(
            self.network,
            Join(name, 0, f"address of {name}", SAMPLES, SIZE),
            self.world.pace,
            self.shards,
            self.gradient,
            lambda: speed * self.random.uniform(0.5, 1.5),
            self.world.kind,
            self.world.ranks,
        )
        self.replicas.append(replica)
        return replica

    def kill(self, replica: SimulatedReplica) -> None:
        replica.kill()
        if self.random.random() < 0.5:  # nobody may notice, and its session ends by silence
            self.loop.schedule(0.05, lambda: self.dispatcher.on_exit(replica.name, "killed by signal 9"))

    def _chance(self) -> None:
        """Draw the faults of a tenth of a second."""
        world, random = self.world, self.random
        alive = [replica for replica in self.replicas if replica.is_alive]
        if alive and random.random() < world.deaths / 10:
            self.kill(random.choice(alive))
        if alive and random.random() < world.pauses / 10:
            paused = random.choice(alive)
            paused.pause()
            self.loop.schedule(random.uniform(0.1, 8), paused.resume)
        if alive and random.random() < world.departures / 10:
            random.choice(alive).leave()
        if (
            not alive and self.dispatcher.state is not DispatcherState.FINISHED
        ) or random.random() < world.arrivals / 10:
            self.start()
        if random.random() < world.checkpoints / 10 and self.dispatcher.may_begin_checkpoint:
            self.dispatcher.begin_checkpoint()
        if self.dispatcher.frozen_ledger is not None and random.random() < 0.5:
            self.take()
        self.check_ledger()
        self.loop.schedule(0.1, self._chance)

    # --- invariants ---

    def live(self) -> None:
        """Run until the training is over, and check the results."""
        found = self.loop.run(
            lambda: self.dispatcher.state is DispatcherState.FINISHED, seconds=900, events=400_000
        )
        assert found, f"{self.dispatcher.state} at {self.loop.now:.1f} s: {self.ledger.total}"
        self.check_ledger()
        assert self.ledger.open == 0
        world = self.world
        assert len(self.ledger.accounts) == world.epochs
        for account in self.ledger.accounts.values():
            settled = account.counted + account.torn + account.refused + account.left_out
            assert settled == SAMPLES, f"of every sample it is known what became of it: {account}"
            if not world.nan and world.staleness.policy != "drop":
                assert not account.torn, f"samples that some servers have come again: {account}"
        self.check_weights()
        for player in self.updates:
            assert player.max_queued_bytes <= self.world.room_bytes, "memory is bounded"
        if self.dispatcher.frozen_ledger is not None:
            self.take()

    def check_ledger(self) -> None:
        total = self.ledger.total
        known = total.counted + total.torn + total.refused + total.lost + self.ledger.open
        assert total.handed_out == known, f"{total}, and {self.ledger.open} are open"

    def check_weights(self) -> None:
        """Check that each server has exactly the samples of the ledger, each once."""
        for server, ranges in zip(self.servers, self.ledger.has, strict=True):
            self.check_sum(server, union(*ranges), server.vectors["weights"])
        counted = union(*self.ledger.by.get("counted", []))
        assert size(counted) == self.ledger.total.counted
        assert all(intersection(counted, union(*ranges)) == counted for ranges in self.ledger.has)

    def check_sum(
        self, server: ShardServer[list[float]], ranges: Ranges, found: Sequence[list[float]]
    ) -> None:
        total = [0.0] * SIZE
        for each in ranges:
            total = [one + other for one, other in zip(total, self.gradient(each, total), strict=True)]
        sign = 1 if self.world.kind == "delta" else -1
        expected = [[sign * each for each in total[shard.start : shard.stop]] for shard in server.shards]
        assert list(found) == expected, f"{server.name} has {found}, and the ledger says {expected}"

    def take(self) -> None:
        """Check that each server's state has exactly the samples of the checkpoint's ledger, each once."""
        kept = self.dispatcher.take_checkpoint()
        assert isinstance(kept, Recorded)
        weights = {}
        for player, server, has in zip(self.updates, self.servers, kept.has, strict=True):
            frozen = player.updates.frozen
            assert frozen is not None and frozen.checkpoint == self.dispatcher.checkpoint
            self.check_sum(server, union(*has), frozen.vectors["weights"])
            weights[server.name] = tuple(map(tuple, frozen.vectors["weights"]))
        counted, total = union(*kept.by.get("counted", [])), kept.total
        assert size(counted) == total.counted
        assert all(intersection(counted, union(*has)) == counted for has in kept.has)
        assert total.handed_out == total.counted + total.torn + total.refused + total.lost
        assert max(kept.accounts) == kept.epoch <= self.ledger.epoch
        for epoch, account in kept.accounts.items():
            settled = account.counted + account.torn + account.refused + account.left_out
            assert settled + (kept.free if epoch == kept.epoch else 0) == SAMPLES
        ledger = Recorded.restored(SAMPLES, json.loads(json.dumps(kept.state())))
        assert isinstance(ledger, Recorded)
        ledger.has, ledger.by = kept.has, kept.by
        self.saved.append(Saved(ledger, weights))
