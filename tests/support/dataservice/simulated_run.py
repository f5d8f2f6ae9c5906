"""A seeded life of a pool of data servers, and its invariants: an independent count of received samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import cast

from cotswold.dataservice.core.epoch_pass import SharedEpochSettings
from cotswold.dataservice.core.pool import PoolState
from cotswold.dataservice.core.request_scheduler import RequestSettings
from cotswold.dataservice.core.server_queue import RequestQueue
from cotswold.dataservice.core.trainer import BatchRequester
from cotswold.simulate.protocols.data_servers import (
    BEAT_SECONDS,
    SimulatedDataServer,
    SimulatedDataTrainer,
    SimulatedHead,
)
from cotswold.simulate.protocols.loop import VirtualTimeLoop
from cotswold.simulate.protocols.network import Faults, SimulatedNetwork
from cotswold.wire import BatchReply, BatchRequest

SAMPLES, BATCH = 40, 3
SILENT_SECONDS = 3.0
ASKING = RequestSettings(window=4, straggler_seconds=0.2, retry_seconds=0.5, no_server_seconds=30.0)


@dataclass(frozen=True)
class World:
    """Settings of a trial."""

    servers: int = 3
    trainers: int = 2
    faults: Faults | None = None
    deaths: float = 0.0
    """Kills of servers per second; the first server lives. Likewise the next rates."""
    pauses: float = 0.0
    """Pauses of servers and trainers."""
    pause_seconds: float = 5.0
    """Longest pause."""
    arrivals: float = 0.0
    """Arrivals of servers."""
    cuts: float = 0.0
    """Broken connections between a server and a trainer that both live."""
    trainer_deaths: float = 0.0
    """Deaths of trainers with shared epochs; the first trainer lives, and each dead one has a successor."""
    breaks: float = 0.0
    """Probability that a loop ends its epoch after a batch."""
    shared: bool = False
    at_least_once: bool = False
    epochs: int = 2
    room: int = 64
    """Capacity of a server for a trainer's requests."""
    batches: int = 20
    """Batches that a trainer with its own order wants."""
    paces: tuple[float, ...] = (0.02, 0.05, 0.3)
    """Random seconds per batch of servers."""
    strangers: int = 0
    """Trainers that want another store."""


class Trial:
    """One life."""

    def __init__(self, seed: int, world: World) -> None:
        self.random, self.world, self.loop = Random(seed), world, VirtualTimeLoop()
        self.network = SimulatedNetwork(self.loop, self.random, world.faults, latency_seconds=0.001)
        self.head = SimulatedHead(self.network, PoolState(f"pool {seed}", SILENT_SECONDS))
        self.got: dict[str, list[BatchRequest]] = {}
        """Requests behind the batches of each loop."""
        self.servers = [self._server(number) for number in range(world.servers)]
        self.trainers = [self._trainer(number) for number in range(world.trainers)]
        self.strangers = [self._trainer(world.trainers + k, "other") for k in range(world.strangers)]
        self.died = 0
        for rate, befall in (
            (world.deaths, self._kill_server),
            (world.arrivals, self._arrive),
            (world.pauses, self._pause),
            (world.cuts, self._cut),
            (world.trainer_deaths, self._kill_trainer),
        ):
            if rate:
                self._sometimes(rate, befall)

    def live(self, seconds: float = 2000.0) -> None:
        """Run until all loops have their batches, and check the assignment."""
        done = self.loop.run(lambda: all(each.is_done for each in (*self.trainers, *self.strangers)), seconds)
        for each in self.strangers:
            assert not self.got[each.name], f"{each.name} got samples of a store that it does not want"
            assert "the pool serves the store s" in each.error, f"{each.name}: {each.error}"
        for each in self.trainers:
            assert not each.error, f"{each.name}: {each.error}"
        assert done, f"no end after {seconds} s"
        self.loop.run(lambda: False, 3 * SILENT_SECONDS)
        if self.world.shared:
            self._check_shared()
        else:
            self._check_own()

    def _check_own(self) -> None:
        for number, trainer in enumerate(self.trainers):
            assert self.got[trainer.name] == self._asks(number), f"{trainer.name} got other batches"

    def _check_shared(self) -> None:
        delivered: dict[int, Counter[int]] = {}
        for asks in self.got.values():
            for ask in asks:
                start, stop = cast(tuple[int, int], ask.buffers[0])
                delivered.setdefault(ask.epoch, Counter()).update(range(start, stop))
        for account in self.head.pool.shared_epochs.accounts:
            found, first = delivered.pop(account.epoch, Counter()), account.epoch * SAMPLES
            assert set(found) <= set(range(first, first + SAMPLES)), "places of another epoch"
            twice = [place for place, times in found.items() if times > 1]
            assert self.world.at_least_once or not twice, f"delivered twice: {twice}"
            assert not account.dealt and (account.is_over or self.world.breaks), f"open: {account}"
            left = account.left_out + account.free
            assert account.delivered + account.died + left == SAMPLES, f"lost: {account}"
            assert account.delivered <= len(found), f"counted, and not delivered: {account}"
            assert SAMPLES - len(found) <= account.died + left, f"lost uncounted: {account}"
            assert account.delivered == sum(account.by.values())
            if not self.world.breaks:
                assert not left, f"left out: {account}"
            if self.world.at_least_once or not (self.died or self.world.pauses):
                assert not account.died, f"nobody had died: {account}"
        assert not delivered, f"no account of epochs {sorted(delivered)}"

    # --- processes ---

    def _server(self, number: int) -> SimulatedDataServer:
        usual = self.random.choice(self.world.paces)
        machine = RequestQueue(f"server-{number}", self.world.room)
        return SimulatedDataServer(self.network, machine, lambda: usual * (0.5 + self.random.random()))

    def _trainer(self, number: int, store: str = "s") -> SimulatedDataTrainer:
        name, world = f"trainer-{number}", self.world
        self.got[name] = []

        def hear(trainer: str, made: BatchReply) -> None:
            (ask,) = made.buffers
            assert isinstance(ask, BatchRequest) and ask.number == made.number, (
                "an answer to another question"
            )
            self.got[trainer].append(ask)

        usual = self.random.choice((0.01, 0.1, 0.4))
        return SimulatedDataTrainer(
            self.network,
            BatchRequester(name, f"at {name}", store, ASKING, self.loop.now, BEAT_SECONDS),
            lambda: usual * (0.5 + self.random.random()),
            hear,
            asks=None if world.shared else self._asks(number),
            drawing=SharedEpochSettings("epochs", (), SAMPLES, BATCH, 3, world.at_least_once)
            if world.shared
            else None,
            epochs=range(world.epochs),
            breaks=lambda: self.random.random() < world.breaks,
        )

    def _asks(self, number: int) -> list[BatchRequest]:
        return [BatchRequest(k, "", number, 1 + k % 3, (k,)) for k in range(1, self.world.batches + 1)]

    # --- faults ---

    def _sometimes(self, rate: float, befall: Callable[[], None]) -> None:
        def act() -> None:
            if not all(each.is_done for each in self.trainers):
                befall()
                self._sometimes(rate, befall)

        self.loop.schedule(self.random.expovariate(rate), act)

    def _kill_server(self) -> None:
        self._kill(self.servers[1:])

    def _kill_trainer(self) -> None:
        dead = self._kill([each for each in self.trainers[1:] if not each.is_done])
        if dead:
            self.died += 1
            self.trainers.append(self._trainer(len(self.trainers)))

    def _kill(self, some: list[SimulatedDataServer] | list[SimulatedDataTrainer]) -> bool:
        living = [each for each in some if each.is_alive]
        if not living:
            return False
        chosen = self.random.choice(living)
        chosen.kill()
        if self.random.random() < 0.5:  # the others hear of it; if not, it is silent
            self.head.handle_disconnect(chosen.name)
            others: list[SimulatedDataServer | SimulatedDataTrainer] = [*self.servers, *self.trainers]
            for other in others:
                if other.is_alive:
                    other.handle_disconnect(chosen.name)
        return True

    def _arrive(self) -> None:
        if len(self.servers) < 8:
            self.servers.append(self._server(len(self.servers)))

    def _pause(self) -> None:
        living = [each for each in (*self.servers, *self.trainers) if each.is_alive]
        chosen = self.random.choice(living)
        chosen.pause()
        self.loop.schedule(self.random.random() * self.world.pause_seconds, chosen.resume)

    def _cut(self) -> None:
        server, trainer = self.random.choice(self.servers), self.random.choice(self.trainers)
        if server.is_alive and trainer.is_alive:
            server.handle_disconnect(trainer.name)
            trainer.handle_disconnect(server.name)
