"""Simulated replicas on a recipe: accuracy after equal samples, and on the way.

Knows: recipes, judging, simulated replicas. Does not know: the command, rates, which cell comes when.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from cotswold.bench.measure import Document, rounded
from cotswold.data import Store
from cotswold.optim.server_rules import Adagrad, Momentum, Rule, Sgd
from cotswold.recipe import Recipe
from cotswold.training.async_sgd.replica_task import Evaluator, ReplicaTask, build_replica_task
from cotswold.training.data.indexed import StoreSamples
from lib.downpour.replicas import arguments
from lib.hogwild import accuracy
from lib.simulated_replicas import Learning, Machines, Moment, SimulatedReplicas

RULES: dict[str, Rule] = {"sgd": Sgd(), "momentum": Momentum(0.9), "adagrad": Adagrad()}
JUDGED = 5
"""Times on the way, and at the end."""
Watch = Callable[[Document], object]
"""Hears each entry of the way."""


class Simulating:
    """A recipe's network on its store, learnt by simulated replicas."""

    def __init__(self, recipe: Recipe, store: Store, rows: Path) -> None:
        torch.set_num_threads(1)
        self._recipe, self._store, self._arguments = recipe, store, arguments(recipe, store, rows)
        self._judge = Evaluator.from_recipe(recipe, store)

    def work(self, seed: int) -> ReplicaTask:
        """A network with the first values of a seed."""
        text = self._arguments["recipe"].replace(
            f"seed = {self._recipe.training.seed}\n", f"seed = {seed}\n", 1
        )
        work = build_replica_task(**{**self._arguments, "recipe": text})
        torch.manual_seed(seed)  # dropout, which in a replica draws anew
        return work

    def cell(
        self,
        machines: Machines,
        learning: Learning,
        *,
        judged: int = JUDGED,
        is_tested: bool = True,
        watch: Watch = lambda entry: None,
    ) -> Document:
        """Accuracy on validation samples and, where it ``is_tested``, on test samples; the way there, with so
        many entries; staleness. ``loss`` is of validation samples, ``learnt`` of the samples that were learnt
        since the entry before."""
        work = self.work(learning.seed)
        simulation = SimulatedReplicas(work, machines, learning)
        way: list[Document] = []

        def look(moment: Moment) -> None:
            means = self._judge.means(moment.parameters)
            assert means is not None, "a set with validation samples"
            way.append(
                {
                    "samples": moment.samples,
                    "simulated_seconds": rounded(moment.seconds),
                    "loss": _finite(means["loss"]),
                    "learnt": _finite(moment.loss),
                    "accuracy": rounded(means["accuracy"]),
                }
            )
            watch(way[-1])

        last = simulation.run(look, max(1, learning.samples // judged))
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
        if is_tested and self._store.splits.get("test"):
            found["test"] = rounded(accuracy(work.network, StoreSamples(self._store, "test")))
        return found


def _finite(loss: float | None) -> float | None:
    """None where there is none, or it has run away."""
    return rounded(loss) if loss is not None and abs(loss) < 1e30 else None
