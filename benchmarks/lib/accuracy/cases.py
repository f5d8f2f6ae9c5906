"""Cases of the accuracy experiments, and the runs of simulated replicas in their cells.

Knows: recipes, rates to try, epochs, simulated replicas. Does not know: the command, the order of the cells,
how cells are compared.
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
from lib.downpour.simulation import SimulatedRun
from lib.simulated_replicas import Learning, Machines

TUNING_SEED = 1_000
_NO_MATTER = {"source", "store", "servers", "cache"}
"""Fields of `[data]` that change no value of a sample; the store's identity names the samples."""
_SUPERVISED_ONLY = {"optimizer", "nesterov", "accumulate", "precision", "compile"}
"""Fields of `[training]` that replicas do not have."""
SYNCHRONOUS = 1
"""Number of replicas of ordinary SGD: one, without overlap."""
_TRIED_AT = 4
"""Number of replicas above which the tried rates fall in proportion."""
JUDGED = 20
"""Number of evaluations during a run, before the final one."""


@dataclass(frozen=True)
class Case:
    """A recipe with the figures that its accuracy is compared with."""

    name: str
    recipe: str
    replicas: tuple[int, ...]
    """Numbers of replicas by default; only 1 for a recipe with data servers, which is an ordinary run."""
    bar: float | None = None
    """Least accuracy to reach."""
    paper: tuple[tuple[str, float], ...] = ()
    """Accuracies that the paper states, by kind of training."""


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
        """Return the name of the candidate in cells."""
        return f"{self.rule} {self.rate:g}"


class Trained:
    """A case with its store; a cell is a run of simulated replicas with real gradients."""

    def __init__(self, case: Case, recipe: Recipe, stores: Path, rows: Path, epochs: int | None) -> None:
        """Raise UserError for a recipe that does not train with labels by mini-batch steps."""
        if not isinstance(recipe.training, SupervisedTraining):
            raise UserError(
                f"{recipe.name} has strategy {recipe.training.strategy!r}; name a recipe with strategy "
                '"supervised"'
            )
        if recipe.training.optimizer != "sgd":
            raise UserError(
                f"{recipe.name} has optimizer {recipe.training.optimizer!r}, which servers do not have; "
                'name a recipe with optimizer "sgd"'
            )
        self.case, self.training = case, recipe.training
        self._momentum = recipe.training.momentum or 0.0
        self.epochs = epochs or max(1, round(recipe.training.epochs))
        self._is_served = isinstance(recipe.data, SourcedData) and bool(recipe.data.servers)
        self._recipe = recipe if self._is_served else _for_replicas(recipe)
        self._stores, self._rows = stores, rows
        self._simulating: SimulatedRun | None = None
        self._store: Store | None = None
        self._samples = 0

    @property
    def store(self) -> Store:
        """Return the samples; raise UserError for a set without validation or test samples."""
        if self._store is None:
            store = open_store(self._recipe, self._stores)
            for split in ("validation", "test"):
                if not store.splits.get(split):
                    raise UserError(
                        f"{self._recipe.name} has no {split} samples; add data.splits or data.{split}=0.1"
                    )
            self._store = store
        return self._store

    def is_of(self, cell: Document) -> bool:
        """True if a cell was trained by this recipe, for as many epochs, on these samples.

        Older cells do not name their store; they count as trained on the data that the recipe itself names.
        """
        told, own = self._recipe.data, load(self.case.recipe).data
        has_own = (told.source, told.store) == (own.source, own.store)
        before = self.store.identity if has_own else None
        return cell["recipe"] == self.digest and cell.get("store", before) == self.store.identity

    @property
    def digest(self) -> str:
        """Digest of the settings that must be equal for cells to be comparable: the recipe without paths
        (cells name their store separately), and the epochs."""
        told = self._recipe.model_dump(
            mode="json", exclude={"cluster": True, "data": _NO_MATTER, "training": _SUPERVISED_ONLY}
        )
        text = json.dumps([_said(told), self.epochs], sort_keys=True)
        return sha256(text.encode()).hexdigest()[:16]

    @property
    def own(self) -> Candidate:
        """Return the rule and rate of the recipe."""
        training = self.training
        return Candidate("momentum" if training.momentum else "sgd", training.learning_rate)

    def candidates(self, replicas: int) -> Sequence[Candidate]:
        """Return the candidates for several replicas: fractions of the recipe's rate, with its momentum and
        without.

        A stale gradient acts like momentum, so lower rates and plain steps are candidates. A plain step
        counts a gradient once and not 1 / (1 - momentum) times, so its rates are higher by that factor.
        Staleness grows with the number of replicas, and all rates fall in proportion.
        """
        rate, momentum = (
            self.training.learning_rate * _TRIED_AT / max(_TRIED_AT, replicas),
            self._momentum,
        )
        plain = [Candidate("sgd", round(part * rate / (1 - momentum), 9)) for part in (1 / 2, 1 / 8, 1 / 32)]
        return [
            *(Candidate("momentum", round(part * rate, 9)) for part in (1 / 4, 1 / 16) if momentum),
            *plain,
        ]

    def cell(self, replicas: int, candidate: Candidate, seed: int, epochs: int, is_final: bool) -> Document:
        """Train for ``epochs`` epochs; evaluate test samples at the end, and only if ``is_final``.

        Raises UserError for several replicas with data servers.
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
        """Make a run of one process, fed by data servers."""
        if replicas != SYNCHRONOUS:
            raise UserError(
                f"{self._recipe.name} uses data servers, which simulated replicas do not support; use "
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
        return Momentum(self._momentum) if candidate.rule == "momentum" else Sgd()

    def _ready(self) -> SimulatedRun:
        if self._simulating is None:
            self._samples = self.store.splits["train"]
            self._simulating = SimulatedRun(self._recipe, self.store, self._rows / self.case.name)
        return self._simulating


def _said(value: object) -> object:
    """Return the value without empty fields, so that a field added to recipes later changes no digest."""
    if isinstance(value, list):
        return [_said(each) for each in value]
    if isinstance(value, dict):
        return {name: _said(each) for name, each in value.items() if each not in (None, "", [], {})}
    return value


def _for_replicas(recipe: Recipe) -> Recipe:
    """Return the recipe with the strategy of replicas."""
    training = recipe.training
    assert isinstance(training, SupervisedTraining), "it was checked"
    rule = ["update_rule=momentum"] if training.momentum else ["update_rule=sgd", "momentum="]
    removed = [f"{name}=" for name in sorted(_SUPERVISED_ONLY)]
    words = ["strategy=downpour", f"epochs={max(1, round(training.epochs))}", *rule, *removed]
    return parse(dump(recipe), overrides=[f"training.{word}" for word in words])
