"""The cells of the Bunyip experiment: so many patterns, a method, a loss; each is one run.

Knows: how a cell changes the recipe, when it is finished, its file. Does not know: errors on held-out sets,
the page.

A cell is trained by `cotswold.train`, so it can be stopped and killed at any time and goes on from its run's
checkpoints. It ends when its FLOPs are used, or earlier by the validation set. Its file is written when it
has ended; with a larger budget it goes on from there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import cotswold
from cotswold.bench.measure import rounded
from cotswold.files import replace_file

RECIPE = "bunyip-japanese-ocr"
Method = Literal["cg", "lbfgs"]
Loss = Literal["squared", "cross_entropy"]
Frequencies = Literal["natural", "equal"]
_POINTS = 150
"""Points of a curve that are kept."""


@dataclass(frozen=True)
class Cell:
    """One run of the experiment."""

    frequencies: Frequencies
    patterns: int
    method: Method
    loss: Loss

    @property
    def name(self) -> str:
        """That of its directory and file."""
        return f"{self.frequencies}-{self.patterns}-{self.method}-{self.loss.replace('_', '-')}"

    @property
    def words(self) -> str:
        """Method and loss, as people say them."""
        method = {"cg": "CG", "lbfgs": "L-BFGS"}[self.method]
        return f"{method}, {self.loss.replace('_', ' ')}"

    def overrides(self) -> dict[str, object]:
        """What the cell changes in the recipe, which has CG and squared error."""
        found: dict[str, object] = {}
        if self.method == "lbfgs":
            found |= {"training.method": "lbfgs", "training.beta": None, "training.search": "wolfe"}
        if self.loss == "cross_entropy":
            found |= {
                "objective.loss": "cross_entropy",
                "objective.low": 0.0,
                "objective.high": 1.0,
                "network.output": "linear",
            }
        return found


@dataclass(frozen=True)
class Curve:
    """What a cell did: at each validation iterations, FLOPs, seconds, loss and error there."""

    iterations: Sequence[int]
    flops: Sequence[float]
    seconds: Sequence[float]
    losses: Sequence[float]
    errors: Sequence[float]


@dataclass(frozen=True)
class Experiment:
    """Where the experiment is, and what all cells have alike."""

    sets: Mapping[Frequencies, Path]
    """The folders that `cotswold data make japanese-ocr` wrote."""
    folder: Path
    flops: float
    """The budget of a cell."""
    settings: Mapping[str, object]
    """More fields of the recipe."""
    threads: int | None = None

    def run_folder(self, cell: Cell) -> Path:
        """The directory of a cell's run."""
        return self.folder / "runs" / cell.name

    def cell_file(self, cell: Cell) -> Path:
        """The file of a finished cell."""
        return self.folder / "cells" / f"{cell.name}.json"

    def advance(self, cell: Cell, flops: float) -> cotswold.Run:
        """Train a cell until it has used so many FLOPs, or ends earlier. KeyboardInterrupt, with everything
        saved, where it is interrupted."""
        own: dict[str, object] = {
            "data.source": f"{self.sets[cell.frequencies].absolute()}:{cell.patterns}",
            "training.iterations": 1_000_000,
            "training.flops": flops,
            **cell.overrides(),
            **self.settings,
        }
        folder = self.run_folder(cell)
        return cotswold.train(
            RECIPE,
            folder,
            overrides=own,
            stores=self.folder / "stores",
            threads=self.threads,
            resume="if_started",
        )

    def used(self, cell: Cell) -> float:
        """FLOPs of a cell so far, by its last iteration."""
        found = self._run(cell)
        return 0.0 if found is None else float(last(found, "step").get("flops", 0.0))

    def ended(self, run: cotswold.Run) -> bool:
        """Whether a cell's run is at its end, and not only at that of a turn."""
        found = told(run)
        return run.status == "finished" and (not found["limited"] or found["flops"] >= self.flops)

    def begun(self, cell: Cell) -> dict[str, Any] | None:
        """What there is of a cell that has validated at least once but has no file for this budget."""
        run = self._run(cell)
        if run is None or self.kept(cell) is not None or not curve_of(run).iterations:
            return None
        return {**asdict(cell), **told(run)}

    def _run(self, cell: Cell) -> cotswold.Run | None:
        folder = self.run_folder(cell)
        return cotswold.Run(folder) if (folder / "recipe.toml").is_file() else None

    def kept(self, cell: Cell) -> dict[str, Any] | None:
        """The file of a cell that has ended with this budget; None where there is something left to do."""
        found = read(self.cell_file(cell))
        ended = found is not None and (found["budget"] >= self.flops or not found["limited"])
        return found if ended else None

    def keep(self, cell: Cell, run: cotswold.Run, judged: Mapping[str, object]) -> None:
        """Write the file of a cell that has ended."""
        found = {**asdict(cell), "budget": self.flops, **told(run), "held_out": judged}
        self.cell_file(cell).parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.cell_file(cell), (json.dumps(found) + "\n").encode())


def read(path: Path) -> dict[str, Any] | None:
    """A file of a cell; None where there is none."""
    if not path.is_file():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def told(run: cotswold.Run) -> dict[str, Any]:
    """What the events of a run say: the account, why it ended, the best validation, curves."""
    step, layers = last(run, "step"), last(run, "stack_end")
    end = last(run, "end")
    if float(end.get("flops", 0)) >= float(step.get("flops", 0)):
        account = {"flops": end.get("flops", 0), "seconds": rounded(float(end.get("seconds", 0.0)))}
    else:  # it was killed, or is being trained
        account = {"flops": step["flops"], "seconds": rounded(float(step["training_seconds"]))}
    curve = curve_of(run)
    best = min(range(len(curve.losses)), key=curve.losses.__getitem__)
    why = str(layers.get("why", "stopped"))
    return {
        "iterations": curve.iterations[-1],
        "evaluations": step.get("evaluations", 0),
        "slopes": step.get("slopes", 0),
        **account,
        "ended": why,
        "limited": why.endswith(" reached"),
        "best": {name: values[best] for name, values in asdict(curve).items()},
        "curve": thinned(curve),
        "recipe": _recipe(run),
    }


def curve_of(run: cotswold.Run) -> Curve:
    """The validations of a run so far."""
    found = [event for event in run.events if event["kind"] == "validation"]

    def numbers(name: str) -> list[float]:
        return [rounded(float(str(event[name]))) for event in found]

    return Curve(
        [int(str(event["step"])) for event in found],
        numbers("flops"),
        numbers("training_seconds"),
        numbers("loss"),
        [rounded(1 - each) for each in numbers("accuracy")],
    )


def thinned(curve: Curve) -> dict[str, Any]:
    """A curve of at most some hundred points, the last one among them."""
    count = len(curve.iterations)
    stride = -(-count // _POINTS) or 1
    chosen = sorted({*range(0, count, stride), count - 1})
    return {name: [values[each] for each in chosen] for name, values in asdict(curve).items()}


def _recipe(run: cotswold.Run) -> dict[str, Any]:
    """What of the recipe decides how well is learnt."""
    recipe = run.recipe
    network = {"output": recipe.network.output, "output_scale": recipe.network.output_scale}
    training = recipe.training.model_dump(
        include={"method", "beta", "search", "memory", "portion", "fraction", "cycle", "patience", "seed"}
    )
    return {**recipe.objective.model_dump(), **network, **training}


def last(run: cotswold.Run, kind: str) -> Mapping[str, Any]:
    """The last event of a kind; empty where there is none."""
    return next((event for event in reversed(run.events) if event["kind"] == kind), {})
