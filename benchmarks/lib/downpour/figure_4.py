"""Figure 4 of Dean et al. 2012: one network from one warm start by SGD, Downpour and Sandblaster.

Knows: how each method runs for a time, processor time, accuracies of saved parameters. Does not know: the
command, rates, the order of the cells, plots.
"""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cotswold.batch.runtime.entry import PRELOADED, open_cluster
from cotswold.bench.measure import Document, rounded, rounded_all
from cotswold.data import Store
from cotswold.host import ForkServer
from cotswold.paramserver.core.replica_session import Pace
from cotswold.recipe import Recipe, from_values, parse
from cotswold.recipe.schema import BatchTraining
from cotswold.training.async_sgd.replica_task import build_replica_task
from cotswold.training.data.indexed import StoreSamples, write_rows
from cotswold.training.flat_parameters import FlatParameters
from cotswold.training.full_batch.cluster import settings_of
from cotswold.training.full_batch.strategy import method_of
from cotswold.training.jobs.restore import supervised_network
from lib.downpour.baselines import Kept
from lib.downpour.replicas import arguments, opened, proceed_until
from lib.downpour.simulation import RULES
from lib.processor_time import Used
from lib.simulated_replicas import Learning, Machines, Moment, SimulatedReplicas

LOOKS = 24
"""Number of times that a run saves its parameters."""
JUDGED_MOST = 5_000
"""Number of evaluated samples of each split, evenly spaced."""
SPLITS = {"train": "train", "validation": "validation", "test": "held-out"}


@dataclass(frozen=True)
class Way:
    """One curve."""

    rule: str
    """`sgd` or `adagrad` on the servers; `lbfgs` for Sandblaster."""
    processes: int
    rates: Sequence[float] = ()
    """Rates to choose from."""

    def of(self, text: str, seed: int, *more: str) -> Recipe:
        """Return a recipe of strategy downpour, changed to train this way."""
        workers, seeded = f"cluster.workers={self.processes}", f"training.seed={seed}"
        if self.rule != "lbfgs":
            endless = ["training.epochs=1000000", "training.warm_start_samples=0"]
            return parse(
                text, overrides=[*endless, f"training.update_rule={self.rule}", workers, seeded, *more]
            )
        values = tomllib.loads(text)
        values["training"] = {"strategy": "batch", "method": "lbfgs", "max_iterations": 100_000, "seed": seed}
        values["cluster"] = {"workers": self.processes}
        return from_values(values, "the recipe for Sandblaster")


WAYS = {
    "SGD, one replica": Way("sgd", 1, (0.05, 0.2, 0.8)),
    "Downpour, fixed rate, 2 replicas": Way("sgd", 2, (0.05, 0.2, 0.8)),
    "Downpour, Adagrad, 2 replicas": Way("adagrad", 2, (0.005, 0.02, 0.08)),
    "Downpour, Adagrad, 4 replicas": Way("adagrad", 4, (0.005, 0.02, 0.08)),
    "Sandblaster L-BFGS, 2 workers": Way("lbfgs", 2),
}


class Experiment:
    """A recipe with its store, from a warm start."""

    def __init__(self, text: str, store: Store, rows: Path, warm_samples: int, seconds: float) -> None:
        """``text`` is a recipe of strategy downpour; ``warm_samples`` are samples of plain SGD by one
        replica."""
        self._text, self._store, self._rows, self._seconds = text, store, rows, seconds
        self._warm_samples = warm_samples
        self._warm: dict[int, Tensor] = {}
        self._accuracies = Accuracies(parse(text), store)

    def warm(self, seed: int) -> Tensor:
        """Return the initial parameters of all ways: the same bits each time."""
        if seed not in self._warm:
            words = ("training.max_staleness=0", "training.learning_rate=0.2")
            recipe = WAYS["SGD, one replica"].of(self._text, seed, *words)
            with opened(recipe, self._store, self._rows) as replicas:
                replicas.resume()
                proceed_until(replicas, lambda: replicas.ledger.total.counted >= self._warm_samples)
                replicas.pause()
                self._warm[seed] = replicas.read()
        return self._warm[seed]

    def cell(self, way: Way, rate: float, seed: int) -> Document:
        """Return accuracies during a run, seconds, and processor time of all processes."""
        warm = self.warm(seed)
        if way.rule == "lbfgs":
            kept, used, steps = self._sandblaster(way.of(self._text, seed), warm)
        else:
            recipe = way.of(self._text, seed, f"training.learning_rate={rate}")
            kept, used, steps = self._downpour(recipe, warm)
        judged = [self._accuracies.of(torch.from_numpy(vector)) for vector in kept.vectors]
        return {
            "rate": rate,
            "seed": seed,
            "processes": way.processes,
            "seconds": rounded_all(kept.seconds),
            "cpu_seconds": rounded_all(used),
            "samples": kept.samples,
            "accuracy": {name: [each[name] for each in judged] for name in judged[0]},
            "step_seconds": rounded(kept.seconds[-1] * way.processes / max(steps, 1)),
        }

    def _downpour(self, recipe: Recipe, warm: Tensor) -> tuple[Kept, list[float], int]:
        kept, used, steps = Kept(), list[float](), 0
        with opened(recipe, self._store, self._rows, {"x": warm}) as replicas:
            pids = [*replicas.replicas.values(), *replicas.servers.values(), os.getpid()]
            clock, began = Used(pids), time.perf_counter()
            kept.keep(began, 0, warm)
            used.append(0.0)
            replicas.resume()
            while time.perf_counter() < began + self._seconds:
                steps += sum(each.steps for each in replicas.proceed(self._seconds / LOOKS))
                used.append(clock.seconds())
                kept.keep(began, replicas.ledger.total.counted, replicas.read())
        return kept, used, steps

    def _sandblaster(self, recipe: Recipe, warm: Tensor) -> tuple[Kept, list[float], int]:
        assert isinstance(recipe.training, BatchTraining), "the way says so"
        write_rows(self._store, "validation", self._rows)
        kept, used, work = Kept(), list[float](), "cotswold.training.full_batch.objective"
        processes = ForkServer((*PRELOADED, work))
        given = arguments(recipe, self._store, self._rows)
        try:
            with open_cluster(
                settings_of(recipe), f"{work}:build_objective", given, processes=processes
            ) as cluster:
                cluster.write("x", warm)
                method = method_of(recipe.training, cluster, cluster)
                clock = Used([*cluster.workers.values(), *cluster.servers.values(), os.getpid()])
                began, samples, steps = time.perf_counter(), 0, 0
                kept.keep(began, 0, warm)
                used.append(0.0)
                while time.perf_counter() < began + self._seconds:
                    found = method.step()
                    steps += found.evaluations
                    samples += found.evaluations * cluster.samples
                    used.append(clock.seconds())
                    kept.keep(began, samples, cluster.read("x"))
                    if found.failure is not None:
                        break
        finally:
            processes.close()
        return kept, used, steps

    def simulated(
        self, way: Way, replicas: int, rate: float, seed: int, times: Mapping[str, float], samples: int
    ) -> Document:
        """Return held-out accuracy by simulated seconds, with more replicas than cores."""
        recipe = way.of(self._text, seed)
        torch.set_num_threads(1)
        work = build_replica_task(**arguments(recipe, self._store, self._rows))
        work.parameters.copy_(self.warm(seed))
        machines = Machines(replicas, seed=seed, **times)
        learning = Learning(Pace(recipe.training.batch_size), rate, samples, RULES[way.rule], seed=seed)
        seconds: list[float] = []
        judged: list[Mapping[str, float]] = []

        def watch(moment: Moment) -> None:
            seconds.append(moment.seconds)
            judged.append(self._accuracies.of(moment.parameters, ("validation", "test")))

        SimulatedReplicas(work, machines, learning).run(watch, max(1, samples // LOOKS))
        return {
            "rate": rate,
            "replicas": replicas,
            "seconds": rounded_all(seconds),
            "accuracy": {name: [each[name] for each in judged] for name in judged[0]},
        }


class Accuracies:
    """Fraction of the samples of each split that a network classifies correctly."""

    def __init__(self, recipe: Recipe, store: Store) -> None:
        self._flat = FlatParameters(supervised_network(recipe, store.outputs).eval())
        self._samples = {split: StoreSamples(store, split) for split in SPLITS if store.splits.get(split)}

    @torch.no_grad()
    def of(self, parameters: Tensor, splits: Sequence[str] = tuple(SPLITS)) -> Mapping[str, float]:
        """Return the fractions by the names in `SPLITS`."""
        self._flat.vector.copy_(parameters)
        found = {}
        for split, samples in self._samples.items():
            if split not in splits:
                continue
            places = np.linspace(0, len(samples) - 1, min(len(samples), JUDGED_MOST)).astype(int)
            right = 0
            for start in range(0, len(places), 500):
                batch = samples.batch(places[start : start + 500].tolist())
                right += int((self._flat.module(batch.inputs).argmax(1) == batch.targets).sum())
            found[SPLITS[split]] = rounded(right / len(places))
        return found
