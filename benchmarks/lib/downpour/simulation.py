"""Simulated replicas on a recipe: accuracy after equal samples, and during training.

Knows: recipes, evaluation, simulated replicas. Does not know: the command, rates, the order of the cells.
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
"""Number of evaluations during a run, before the final one."""
Watch = Callable[[Document], object]
"""Receives each entry of the curve."""


class SimulatedRun:
    """A recipe's network with its store, trained by simulated replicas."""

    def __init__(self, recipe: Recipe, store: Store, rows: Path) -> None:
        torch.set_num_threads(1)
        self._recipe, self._store, self._arguments = recipe, store, arguments(recipe, store, rows)
        self._judge = Evaluator.from_recipe(recipe, store)

    def work(self, seed: int) -> ReplicaTask:
        """Return a network with the initial values of a seed."""
        text = self._arguments["recipe"].replace(
            f"seed = {self._recipe.training.seed}\n", f"seed = {seed}\n", 1
        )
        work = build_replica_task(**{**self._arguments, "recipe": text})
        torch.manual_seed(seed)  # for dropout, which draws new masks in a replica
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
        """Return accuracy on validation samples and, if ``is_tested``, on test samples, the curve with
        ``judged`` entries, and staleness. ``loss`` is over validation samples; ``learnt`` is the training
        loss since the entry before."""
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
    """Return the loss, or None if it is missing or has diverged."""
    return rounded(loss) if loss is not None and abs(loss) < 1e30 else None
