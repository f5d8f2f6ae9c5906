"""The training of a life: replicas that push whole numbers to buckets, their coordinator and its ledger.

Knows: the state machines of replicas, how gradients are made from samples and a seed, readers. Does not know:
servers, faults, invariants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from tests.chaos.cluster_setup import SHARD
from tests.chaos.recorded_ledger import RecordedDispatcher, RecordedLedger, SimulatedCoordinator
from tests.chaos.world import World

from cotswold.paramserver.core.replica_session import StepTask
from cotswold.paramserver.core.settings import DispatcherSettings
from cotswold.simulate.protocols.copies import RoutedNetwork
from cotswold.simulate.protocols.network import SimulatedNetwork
from cotswold.simulate.protocols.replicas import SimulatedReplica
from cotswold.wire import COORDINATOR, Join, Message, PullNewer, Send, Shard

SAMPLES = 24
"""Samples of an epoch."""


_READ_SECONDS = 0.1


class Reader:
    """A client that pulls all shards repeatedly without pushes, like an evaluator."""

    def __init__(self, network: RoutedNetwork, name: str, shards: Sequence[Shard]) -> None:
        self.name, self._network, self._pulls = name, network, 0
        self._shards = {
            bucket: tuple(each.number for each in shards if each.server == bucket)
            for bucket in dict.fromkeys(each.server for each in shards)
        }
        network.endpoints[name] = self
        self._tick()

    def receive(self, sender: str, message: Message) -> None:
        """Ignore a reply, which was judged when it was sent."""

    def _tick(self) -> None:
        self._pulls += 1
        pulls = [
            Send(bucket, PullNewer("run", 0, self._pulls, numbers, (-1,) * len(numbers)))
            for bucket, numbers in self._shards.items()
        ]
        self._network.send(self.name, pulls)
        self._network.loop.schedule(_READ_SECONDS, self._tick)


class Training:
    """Replicas and their coordinator."""

    def __init__(
        self,
        network: SimulatedNetwork,
        shards: Sequence[Shard],
        controllers: Sequence[str],
        world: World,
        seed: int,
        hear: Callable[[str, Sequence[Send]], None],
        begins: Callable[[str, StepTask], None],
    ) -> None:
        """``hear`` receives all messages of clients to buckets; ``begins`` is called for each step of a
        replica."""
        self._begins = begins
        self.world, self.seed, self.shards = world, seed, tuple(shards)
        self._random = network.random
        self.size = SHARD * len(shards)
        """Number of parameters."""
        buckets = tuple(dict.fromkeys(each.server for each in shards))
        self.clients = RoutedNetwork(network, buckets, controllers, hear)
        self.ledger = RecordedLedger(SAMPLES, len(buckets))
        rules = DispatcherSettings(
            *("run", SAMPLES, self.size, world.epochs, 1.0, world.hand, world.hand // 2),
            state_seconds=world.order_seconds,
            beat_seconds=0.25,
            silent_seconds=3.0,
            retry_seconds=0.5,
        )
        servers = [(name, name) for name in buckets]
        self.dispatcher = RecordedDispatcher(rules, shards, servers, 0.0, self.ledger)
        self.coordinator = SimulatedCoordinator(self.clients, self.dispatcher, buckets, SHARD)
        self.replicas: list[SimulatedReplica] = []
        """All replicas, including dead ones."""
        self.readers: list[Reader] = []
        self._gradients: dict[int, list[float]] = {}
        for _ in range(world.replicas):
            self.start_replica()
        for _ in range(world.readers):
            self.start_reader()

    @property
    def living(self) -> list[SimulatedReplica]:
        """Live replicas."""
        return [each for each in self.replicas if each.is_alive]

    @property
    def names(self) -> list[str]:
        """Names of all live clients."""
        return [COORDINATOR, *(each.name for each in self.living), *(each.name for each in self.readers)]

    def start_reader(self) -> None:
        """Start a reader."""
        self.readers.append(Reader(self.clients, f"reader {len(self.readers)}", self.shards))

    def start_replica(self) -> None:
        """Start a replica."""
        name, random = f"replica {len(self.replicas)}", self._random
        speed = random.choice(self.world.speeds)
        join = Join(name, 0, f"address of {name}", SAMPLES, self.size)
        self.replicas.append(
            SimulatedReplica(
                *(self.clients, join, self.world.pace, self.shards, self.gradient),
                lambda: speed * random.uniform(0.5, 1.5),
                begins=lambda task: self._begins(name, task),
            )
        )

    def gradient(self, samples: tuple[int, int], weights: Sequence[float]) -> list[float]:
        """Return whole numbers that, except by rare chance, no two sets of samples share."""
        total = [0.0] * self.size
        for place in range(*samples):
            total = [each + other for each, other in zip(total, self._of(place), strict=True)]
        return total

    def _of(self, place: int) -> list[float]:
        if place not in self._gradients:
            random = Random(self.seed * 1_000_003 + place)
            self._gradients[place] = [float(random.getrandbits(36)) for _ in range(self.size)]
        return self._gradients[place]
