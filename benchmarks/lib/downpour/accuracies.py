"""Accuracy of replicas: at the best epoch by validation, and after a time with and without kills.

Knows: runs of replicas, evaluation on validation and test samples. Does not know: the command, rates, cells.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import Tensor

from cotswold.bench.measure import Document, rounded
from cotswold.data import Store
from cotswold.recipe import Recipe, dump, parse
from cotswold.training.async_sgd.replica_task import Evaluator
from cotswold.training.data.indexed import StoreSamples
from cotswold.training.flat_parameters import FlatParameters
from cotswold.training.jobs.restore import supervised_network
from lib.downpour.baselines import Race
from lib.downpour.replicas import opened, proceed_until
from lib.downpour.speeds import kill_one
from lib.downpour.time_to_accuracy import replicas
from lib.hogwild import accuracy


class Accurate:
    """A recipe of strategy downpour with its store."""

    def __init__(self, recipe: Recipe, store: Store, rows: Path) -> None:
        self._recipe, self._store, self._rows = recipe, store, rows

    def recipe(self, workers: int, rate: float, seed: int, *more: str) -> Recipe:
        """Return the recipe with changes."""
        words = [f"training.learning_rate={rate}", f"training.seed={seed}", f"cluster.workers={workers}"]
        return parse(dump(self._recipe), overrides=[*words, *more])

    def learnt(self, is_synchronous: bool, rate: float, seed: int, epochs: int) -> Document:
        """Train one replica without overlap (ordinary SGD) or two asynchronous replicas.

        Parameters are saved each epoch; those with the best validation accuracy are evaluated on test
        samples.
        """
        workers, more = (1, ["training.max_staleness=0"]) if is_synchronous else (2, [])
        recipe = self.recipe(workers, rate, seed, *more)
        epoch = self._store.splits["train"]
        race = Race(rate, seed, epochs * epoch, epoch, recipe.training.batch_size, workers)
        kept = replicas(recipe, self._store, self._rows, race)
        vectors = [torch.from_numpy(vector) for vector in kept.vectors]
        judge = Evaluator.from_recipe(recipe, self._store)
        validated = []
        for vector in vectors:
            means = judge.means(vector)
            assert means is not None, "a set with validation samples"
            validated.append(means["accuracy"])
        best = max(range(len(validated)), key=validated.__getitem__)
        return {
            "rate": rate,
            "seed": seed,
            "validation": rounded(validated[best]),
            "epoch": best + 1,
            "test": rounded(self._tested(recipe, vectors[best])),
            "seconds": rounded(kept.seconds[-1]),
            "all_validation": [rounded(one) for one in validated],
        }

    def after(self, seconds: float, rate: float, seed: int, every: float | None) -> Document:
        """Train two replicas for some seconds; with ``every``, kill and restart the older one at that
        interval."""
        recipe, kills = self.recipe(2, rate, seed), 0
        with opened(recipe, self._store, self._rows) as learning:
            learning.resume()
            began = time.monotonic()

            def look() -> None:
                nonlocal kills
                if every is not None and time.monotonic() - began > (kills + 1) * every:
                    kill_one(learning)
                    kills += 1

            proceed_until(learning, lambda: time.monotonic() - began >= seconds, look)
            learning.pause()
            last, account = learning.read(), learning.ledger.total
        return {
            "seed": seed,
            "test": rounded(self._tested(recipe, last)),
            "kills": kills,
            "samples_a_second": rounded(account.counted / seconds),
            **{name: value for name, value in vars(account).items() if value},
        }

    def _tested(self, recipe: Recipe, parameters: Tensor) -> float:
        flat = FlatParameters(supervised_network(recipe, self._store.outputs))
        flat.vector.copy_(parameters)
        split = "test" if self._store.splits.get("test") else "validation"
        return accuracy(flat.module, StoreSamples(self._store, split))
