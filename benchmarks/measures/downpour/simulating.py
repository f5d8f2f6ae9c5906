"""Simulated replicas on a recipe: accuracy after equal samples, and on the way.

Knows: recipes, judging, simulated replicas. Does not know: the command, rates, which cell comes when.
"""

from __future__ import annotations

from pathlib import Path

import torch

from cotswold.bench.measure import Document, rounded
from cotswold.data import Store
from cotswold.optim.updates import Adagrad, Momentum, Rule, Sgd
from cotswold.recipe import Recipe
from cotswold.training.learning_works import Judge, LearningWork, in_replica
from cotswold.training.patterns import StorePatterns
from cotswold.training.simulated_replicas import Learning, Machines, Moment, SimulatedReplicas
from measures.downpour.road import arguments
from measures.hogwild import accuracy

RULES: dict[str, Rule] = {"sgd": Sgd(), "momentum": Momentum(0.9), "adagrad": Adagrad()}
JUDGED = 5
"""Times on the way, and at the end."""


class Simulating:
    """A recipe's network on its store, learnt by simulated replicas."""

    def __init__(self, recipe: Recipe, store: Store, rows: Path) -> None:
        torch.set_num_threads(1)
        self._recipe, self._store, self._arguments = recipe, store, arguments(recipe, store, rows)
        self._judge = Judge.of_recipe(recipe, store)

    def work(self, seed: int) -> LearningWork:
        """A network with the first values of a seed."""
        text = self._arguments["recipe"].replace(
            f"seed = {self._recipe.training.seed}\n", f"seed = {seed}\n", 1
        )
        return in_replica(**{**self._arguments, "recipe": text})

    def cell(self, machines: Machines, learning: Learning) -> Document:
        """Accuracy on validation and test samples, the way there, and staleness."""
        work = self.work(learning.seed)
        simulation = SimulatedReplicas(work, machines, learning)
        way: list[Document] = []

        def watch(moment: Moment) -> None:
            means = self._judge.means(moment.parameters)
            assert means is not None, "a set with validation samples"
            way.append(
                {
                    "samples": moment.samples,
                    "simulated_seconds": rounded(moment.seconds),
                    "loss": rounded(means["loss"]) if means["loss"] < 1e30 else None,
                    "accuracy": rounded(means["accuracy"]),
                }
            )

        last = simulation.run(watch, max(1, learning.samples // JUDGED))
        work.parameters.copy_(last.parameters)
        found: Document = {
            "replicas": machines.replicas,
            "rule": learning.rule.name,
            "rate": learning.rate,
            "seed": learning.seed,
            "validation": way[-1]["accuracy"],
            "staleness": rounded(simulation.staleness.mean),
            "staleness_most": simulation.staleness.largest,
            "way": way,
        }
        if self._store.splits.get("test"):
            found["test"] = rounded(accuracy(work.network, StorePatterns(self._store, "test")))
        return found
