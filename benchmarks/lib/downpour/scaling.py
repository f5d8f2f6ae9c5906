"""Speed by number of processes: on one copy of the weights, and as replicas; measured here and simulated.

Knows: Hogwild, replicas, simulated replicas without gradients. Does not know: the command, plots.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from cotswold.api.ranks import cores
from cotswold.bench.measure import Document, rounded
from cotswold.data import Store
from cotswold.paramserver.core.replica_session import Pace
from cotswold.recipe import Recipe, dump, parse
from cotswold.shards.runtime.work import PortionSum, TensorSlot
from cotswold.training.async_sgd.replica_task import build_replica_task
from lib.downpour.replicas import arguments, opened, stretch
from lib.hogwild import FACTORY
from lib.hogwild_training import Steps, train
from lib.simulated_replicas import Learning, Machines, SimulatedReplicas

SETTLING_SECONDS = 2.0
SIMULATED_STEPS = 200
"""Simulated steps of each replica."""


class ScalingCase:
    """A recipe of strategy downpour with its store."""

    def __init__(self, recipe: Recipe, store: Store, rows: Path, seconds: float) -> None:
        self._recipe, self._store, self._rows, self._seconds = recipe, store, rows, seconds
        self._rate: float | None = None
        """Samples per second of one process, or None before the first measurement."""

    def on_one_copy(self, processes: int) -> Document:
        """Return billions of connections per second: the network's connections times samples per second."""
        words = arguments(self._recipe, self._store, self._rows)
        connections = build_replica_task(**words).flops[0] / 2
        batch = self._recipe.training.batch_size
        rate = self._rate or 20 * batch
        samples = max(round(rate * processes * self._seconds), 4 * batch * processes)
        done = train(FACTORY, words, Steps(samples, batch, 0.05), processes)[1]
        speed = sum(each.samples for each in done) / max(each.seconds for each in done)
        self._rate = speed / processes
        return {
            "processes": processes,
            "connections": connections,
            "samples_a_second": rounded(speed),
            "billion_connections_a_second": rounded(connections * speed / 1e9),
        }

    def replicas(self, count: int) -> Document:
        """Return samples per second of replicas behind one server, and the processor time of a step."""
        recipe = parse(dump(self._recipe), overrides=[f"cluster.workers={count}"])
        with opened(recipe, self._store, self._rows) as learning:
            learning.resume()
            learning.proceed(SETTLING_SECONDS)
            speed, used = stretch(learning, self._seconds)
            size = learning.size
        return {
            "samples_a_second": rounded(speed),
            "batch": recipe.training.batch_size,
            "push_bytes": 4 * size,
            "cores": cores(),
            **used,
        }


class Nothing:
    """Work of one parameter without data: only the times of steps matter."""

    flops = (0, 0)
    samples = 1 << 30
    layout: Sequence[TensorSlot] = (TensorSlot("nothing", 1, 1),)

    def __init__(self) -> None:
        self.parameters = torch.zeros(1)

    def compute(self, samples: Sequence[int], gradient: Tensor) -> PortionSum:
        """Return an empty sum without a gradient."""
        return PortionSum(0.0, len(samples), {})


def simulated_speed(replicas: int, batch: int, step_seconds: float, server_seconds: float) -> float:
    """Return samples per second if every replica and the server have their own cores, at the usual speeds."""
    machines = Machines(replicas, step_seconds, 0.0, travel_seconds=0.0, apply_seconds=server_seconds)
    learning = Learning(Pace(1), 1.0, SIMULATED_STEPS * replicas)
    last = SimulatedReplicas(Nothing(), machines, learning).run(lambda moment: None, learning.samples)
    return batch * last.samples / last.seconds
