"""Speed against the number of processes: on one copy of the weights, and as replicas; here and simulated.

Knows: Hogwild, replicas, simulated ones without gradients. Does not know: the command, images.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from cotswold.bench.measure import Document, rounded
from cotswold.cli.support.tables import cores
from cotswold.data import Store
from cotswold.paramserver.core.replica_session import Pace
from cotswold.recipe import Recipe, dump, parse
from cotswold.shards.runtime.work import PortionSum, TensorSlot
from cotswold.training.async_sgd.replica_task import in_replica
from measures.downpour.road import arguments, opened, stretch
from measures.hogwild import FACTORY
from measures.hogwild_training import Steps, train
from measures.simulated_replicas import Learning, Machines, SimulatedReplicas

SETTLING_SECONDS = 2.0
SIMULATED_STEPS = 200
"""Of each replica."""


class Growing:
    """A recipe of strategy downpour on its store."""

    def __init__(self, recipe: Recipe, store: Store, rows: Path, seconds: float) -> None:
        self._recipe, self._store, self._rows, self._seconds = recipe, store, rows, seconds
        self._rate: float | None = None
        """Samples a second of one process, as far as it is known."""

    def on_one_copy(self, processes: int) -> Document:
        """Billions of connections a second: those of the network times samples a second."""
        words = arguments(self._recipe, self._store, self._rows)
        connections = in_replica(**words).flops[0] / 2
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
        """Samples a second of replicas behind one server, and the processor time of a step."""
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
    """Work of one parameter and no data: what matters is when steps are done."""

    flops = (0, 0)
    patterns = 1 << 30
    layout: Sequence[TensorSlot] = (TensorSlot("nothing", 1, 1),)

    def __init__(self) -> None:
        self.parameters = torch.zeros(1)

    def compute(self, samples: Sequence[int], gradient: Tensor) -> PortionSum:
        """No gradient."""
        return PortionSum(0.0, len(samples), {})


def simulated_speed(replicas: int, batch: int, step_seconds: float, server_seconds: float) -> float:
    """Samples a second where every replica and the server have a core of their own, with the usual speeds."""
    machines = Machines(replicas, step_seconds, 0.0, travel_seconds=0.0, apply_seconds=server_seconds)
    learning = Learning(Pace(1), 1.0, SIMULATED_STEPS * replicas)
    last = SimulatedReplicas(Nothing(), machines, learning).run(lambda moment: None, learning.samples)
    return batch * last.samples / last.seconds
