"""Cases of the experiments on accuracy, and what simulated replicas do in a cell of them.

Knows: recipes, which rates are tried, epochs, simulated replicas. Does not know: the command, which cell
comes when, how cells are compared.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from cotswold.bench.measure import Document, rounded
from cotswold.data import Store
from cotswold.errors import UserError
from cotswold.optim.schedule import SampleSchedule
from cotswold.optim.server_rules import Momentum, Rule, Sgd
from cotswold.paramserver.core.replica_session import Pace
from cotswold.recipe import Recipe, dump, load, parse
from cotswold.recipe.schema import SourcedData, SupervisedTraining
from cotswold.training import open_store
from cotswold.ui.format import duration
from cotswold.ui.terminal import write_message
from lib.accuracy.served import learn
from lib.cells import number
from lib.downpour.simulation import Simulating
from lib.simulated_replicas import Learning, Machines

TUNING_SEED = 1_000
_NO_MATTER = {"source", "store", "servers", "cache"}
"""Fields of `[data]` on which no value of a sample depends; the samples are named by their store."""
SYNCHRONOUS = 1
"""One replica without overlap, which is ordinary SGD."""
_TRIED_AT = 4
"""Replicas, above which rates that are tried are lower by as much."""
JUDGED = 20
"""Times on the way, and at the end."""


@dataclass(frozen=True)
class Case:
    """A recipe, and what its accuracy stands beside."""

    name: str
    recipe: str
    replicas: tuple[int, ...]
    """By default; one alone where the recipe has data servers, which feed an ordinary run."""
    bar: float | None = None
    """Least accuracy that is wanted."""
    paper: tuple[tuple[str, float], ...] = ()
    """What the paper states, of which training."""


CASES = (
    Case("mnist", "adam-mnist", (1, 4, 16), 0.9939, (("synchronous", 0.9939), ("asynchronous", 0.9963))),
    Case("cifar10", "adam-cifar10", (1,), 0.75),
    Case("mnist-augmented", "adam-mnist-augmented", (1,), 0.996),
    Case("cifar10-augmented", "adam-cifar10-augmented", (1,), 0.82),
)


@dataclass(frozen=True)
class Candidate:
    """A rule of the servers with its rate."""

    rule: str
    rate: float

    @property
    def name(self) -> str:
        """As cells name it."""
        return f"{self.rule} {self.rate:g}"


class Trained:
    """A case on its store; a cell is a run of simulated replicas with real gradients."""

    def __init__(self, case: Case, recipe: Recipe, stores: Path, rows: Path, epochs: int | None) -> None:
        """Raises UserError for a recipe that is not trained with labels by steps of mini-batches."""
        if not isinstance(recipe.training, SupervisedTraining):
            raise UserError(
                f"{recipe.name} has strategy {recipe.training.strategy!r}; name a recipe with strategy "
                '"supervised"'
            )
        self.case, self.training = case, recipe.training
        self.epochs = epochs or max(1, round(recipe.training.epochs))
        self._is_served = isinstance(recipe.data, SourcedData) and bool(recipe.data.servers)
        self._recipe = recipe if self._is_served else _for_replicas(recipe)
        self._stores, self._rows = stores, rows
        self._simulating: Simulating | None = None
        self._store: Store | None = None
        self._samples = 0

    @property
    def store(self) -> Store:
        """The samples; raises UserError for a set without validation or test samples."""
        if self._store is None:
            store = open_store(self._recipe, self._stores)
            for split in ("validation", "test"):
                if not store.splits.get(split):
                    raise UserError(
                        f"{self._recipe.name} has no {split} samples; give it some by data.splits, or "
                        f"data.{split}=0.1"
                    )
            self._store = store
        return self._store

    def is_of(self, cell: Document) -> bool:
        """Whether a cell was trained by this recipe, so long, on these samples.

        Cells of earlier versions do not name their store; they are of the data that the recipe itself names.
        """
        told, own = self._recipe.data, load(self.case.recipe).data
        has_own = (told.source, told.store) == (own.source, own.store)
        before = self.store.identity if has_own else None
        return cell["recipe"] == self.digest and cell.get("store", before) == self.store.identity

    @property
    def digest(self) -> str:
        """Of what must be the same for cells to be comparable: what the recipe says but for paths (cells name
        their store besides), and the epochs."""
        told = self._recipe.model_dump(mode="json", exclude={"cluster": True, "data": _NO_MATTER})
        text = json.dumps([_said(told), self.epochs], sort_keys=True)
        return sha256(text.encode()).hexdigest()[:16]

    @property
    def own(self) -> Candidate:
        """What the recipe says."""
        training = self.training
        return Candidate("momentum" if training.momentum else "sgd", training.learning_rate)

    def candidates(self, replicas: int) -> Sequence[Candidate]:
        """What is tried for several replicas: parts of the recipe's rate, with its momentum, and without.

        A stale gradient counts like momentum, so that rates are lower and plain steps come into question; of
        these a gradient counts once, and not 1 / (1 - momentum) times, so their rates are so many times
        higher. Staleness grows with the replicas, and all rates fall as it does.
        """
        rate, momentum = (
            self.training.learning_rate * _TRIED_AT / max(_TRIED_AT, replicas),
            self.training.momentum,
        )
        plain = [Candidate("sgd", round(part * rate / (1 - momentum), 9)) for part in (1 / 2, 1 / 8, 1 / 32)]
        return [
            *(Candidate("momentum", round(part * rate, 9)) for part in (1 / 4, 1 / 16) if momentum),
            *plain,
        ]

    def cell(self, replicas: int, candidate: Candidate, seed: int, epochs: int, is_final: bool) -> Document:
        """Learn for so many epochs; test samples are judged at the end, and only where this ``is_final``.

        Raises UserError for several replicas that data servers feed.
        """
        if self._is_served:
            return self._served_cell(replicas, candidate, seed, epochs)
        simulating, training = self._ready(), self.training
        batch = training.batch_size
        learning = Learning(
            pace=Pace(batch, overlap=replicas != SYNCHRONOUS),
            rate=candidate.rate,
            samples=epochs * self._samples,
            rule=self._rule(candidate),
            seed=seed,
            schedule=SampleSchedule(training.schedule, training.warmup, self._samples, batch, epochs),
        )
        machines = Machines(replicas, seed=seed)
        began = time.monotonic()

        def tell(entry: Document) -> None:
            done, seconds = number(entry, "samples") / learning.samples, time.monotonic() - began
            if done:
                write_message(
                    f"  {min(done, 1):.0%}, validation {number(entry, 'accuracy'):.2%}, "
                    f"{duration(max(0.0, seconds / done - seconds))} left"
                )

        found = simulating.cell(machines, learning, judged=JUDGED, is_tested=is_final, watch=tell)
        return {**found, **self._known(epochs, began)}

    def _served_cell(self, replicas: int, candidate: Candidate, seed: int, epochs: int) -> Document:
        """A run of one process, which data servers feed."""
        if replicas != SYNCHRONOUS:
            raise UserError(
                f"{self._recipe.name} is fed by data servers, and replicas are simulated without; take "
                "--replicas 1"
            )
        recipe, began = parse(dump(self._recipe), overrides=[f"training.epochs={epochs}"]), time.monotonic()
        place = self._stores / "runs" / f"{self.case.name}-{seed}"

        def tell(entry: Document) -> None:
            write_message(f"  {entry['samples']:,} samples, validation {number(entry, 'accuracy'):.2%}")

        found = learn(recipe, seed, place, self._stores, tell)
        alone = {
            "replicas": 1,
            "rule": candidate.rule,
            "rate": candidate.rate,
            "staleness": 0.0,
            "staleness_most": 0,
        }
        return {**alone, **found, **self._known(epochs, began)}

    def _known(self, epochs: int, began: float) -> Document:
        return {
            "recipe": self.digest,
            "store": self.store.identity,
            "epochs": epochs,
            "seconds": rounded(time.monotonic() - began),
        }

    def _rule(self, candidate: Candidate) -> Rule:
        return Momentum(self.training.momentum) if candidate.rule == "momentum" else Sgd()

    def _ready(self) -> Simulating:
        if self._simulating is None:
            self._samples = self.store.splits["train"]
            self._simulating = Simulating(self._recipe, self.store, self._rows / self.case.name)
        return self._simulating


def _said(value: object) -> object:
    """Without fields that say nothing, so that a field that recipes get later changes nothing."""
    if isinstance(value, list):
        return [_said(each) for each in value]
    if isinstance(value, dict):
        return {name: _said(each) for name, each in value.items() if each not in (None, "", [], {})}
    return value


def _for_replicas(recipe: Recipe) -> Recipe:
    """The recipe with the strategy of replicas."""
    training = recipe.training
    assert isinstance(training, SupervisedTraining), "it was checked"
    rule = ["rule=momentum"] if training.momentum else ["rule=sgd", "momentum="]
    words = ["strategy=downpour", f"epochs={max(1, round(training.epochs))}", *rule]
    return parse(dump(recipe), overrides=[f"training.{word}" for word in words])
