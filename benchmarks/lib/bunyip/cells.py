"""The cells of the Bunyip experiment: a number of patterns, a method, a loss; each cell is one run.

Knows: how a cell changes the recipe, when it is finished, its file. Does not know: errors on held-out sets,
the page.

`cotswold.train` trains a cell, so it can be stopped or killed at any time, and resumes from the checkpoints
of its run. A cell ends when it has used its FLOPs, or earlier by validation. Its file is written at its end;
a larger budget continues it.
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
Loss = Literal["squared_error", "cross_entropy"]
Frequencies = Literal["natural", "equal"]
_POINTS = 150
"""Number of points kept of a curve."""


@dataclass(frozen=True)
class Cell:
    """One run of the experiment."""

    frequencies: Frequencies
    patterns: int
    method: Method
    loss: Loss

    @property
    def name(self) -> str:
        """Name of the cell's directory and file."""
        return f"{self.frequencies}-{self.patterns}-{self.method}-{self.loss.replace('_', '-')}"

    @property
    def words(self) -> str:
        """Method and loss in usual writing."""
        method = {"cg": "CG", "lbfgs": "L-BFGS"}[self.method]
        return f"{method}, {self.loss.replace('_', ' ')}"

    def overrides(self) -> dict[str, object]:
        """Return the cell's changes of the recipe, which has CG and squared error."""
        found: dict[str, object] = {}
        if self.method == "lbfgs":
            found |= {"training.method": "lbfgs", "training.beta": None, "training.line_search": "wolfe"}
        if self.loss == "cross_entropy":
            found |= {
                "objective.loss": "cross_entropy",
                "objective.target_low": 0.0,
                "objective.target_high": 1.0,
                "network.output": "linear",
            }
        return found


@dataclass(frozen=True)
class Curve:
    """Iterations, FLOPs, seconds, loss and error of a cell at each validation."""

    iterations: Sequence[int]
    flops: Sequence[float]
    seconds: Sequence[float]
    losses: Sequence[float]
    errors: Sequence[float]


@dataclass(frozen=True)
class Experiment:
    """Directory and common settings of all cells."""

    sets: Mapping[Frequencies, Path]
    """Folders written by `cotswold data make japanese-ocr`."""
    folder: Path
    flops: float
    """Budget of a cell."""
    settings: Mapping[str, object]
    """Other fields of the recipe."""
    threads: int | None = None

    def run_folder(self, cell: Cell) -> Path:
        """The directory of a cell's run."""
        return self.folder / "runs" / cell.name

    def cell_file(self, cell: Cell) -> Path:
        """The file of a finished cell."""
        return self.folder / "cells" / f"{cell.name}.json"

    def advance(self, cell: Cell, flops: float) -> cotswold.Run:
        """Train a cell until it has used ``flops`` FLOPs or ends.

        After an interruption, everything is saved and KeyboardInterrupt raised.
        """
        own: dict[str, object] = {
            "data.source": f"{self.sets[cell.frequencies].absolute()}:{cell.patterns}",
            "training.max_iterations": 1_000_000,
            "training.max_flops": flops,
            **cell.overrides(),
            **self.settings,
        }
        folder = self.run_folder(cell)
        return cotswold.train_recipe(
            RECIPE,
            folder,
            overrides=own,
            stores=self.folder / "stores",
            threads=self.threads,
            resume="if_started",
        )

    def used(self, cell: Cell) -> float:
        """Return the FLOPs that a cell has used by its last iteration."""
        found = self._run(cell)
        return 0.0 if found is None else float(last(found, "step").get("flops", 0.0))

    def ended(self, run: cotswold.Run) -> bool:
        """True if a cell's run has ended, and not only a turn of it."""
        found = told(run)
        return run.status == "finished" and (not found["limited"] or found["flops"] >= self.flops)

    def begun(self, cell: Cell) -> dict[str, Any] | None:
        """Return the state of a cell that was validated but has no file for this budget."""
        run = self._run(cell)
        if run is None or self.kept(cell) is not None or not curve_of(run).iterations:
            return None
        return {**asdict(cell), **told(run)}

    def _run(self, cell: Cell) -> cotswold.Run | None:
        folder = self.run_folder(cell)
        return cotswold.Run(folder) if (folder / "recipe.toml").is_file() else None

    def kept(self, cell: Cell) -> dict[str, Any] | None:
        """Return the file of a cell that has ended with this budget, or None if there is work left."""
        found = read(self.cell_file(cell))
        ended = found is not None and (found["budget"] >= self.flops or not found["limited"])
        return found if ended else None

    def keep(self, cell: Cell, run: cotswold.Run, judged: Mapping[str, object]) -> None:
        """Write the file of a cell that has ended."""
        found = {**asdict(cell), "budget": self.flops, **told(run), "held_out": judged}
        self.cell_file(cell).parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.cell_file(cell), (json.dumps(found) + "\n").encode())


def read(path: Path) -> dict[str, Any] | None:
    """Return the contents of a cell's file, or None if it does not exist."""
    if not path.is_file():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def told(run: cotswold.Run) -> dict[str, Any]:
    """Summarize the events of a run: the account, the reason of its end, the best validation, curves."""
    step, layers = last(run, "step"), last(run, "phase_end")
    end = last(run, "end")
    if float(end.get("flops", 0)) >= float(step.get("flops", 0)):
        account = {"flops": end.get("flops", 0), "seconds": rounded(float(end.get("seconds", 0.0)))}
    else:  # killed, or in training
        account = {"flops": step["flops"], "seconds": rounded(float(step["training_seconds"]))}
    curve = curve_of(run)
    best = min(range(len(curve.losses)), key=curve.losses.__getitem__)
    why = str(layers.get("reason", "stopped"))
    return {
        "iterations": curve.iterations[-1],
        "evaluations": step.get("evaluations", 0),
        "slopes": step.get("partial_evaluations", 0),
        **account,
        "ended": why,
        "limited": why.endswith(" reached"),
        "best": {name: values[best] for name, values in asdict(curve).items()},
        "curve": thinned(curve),
        "recipe": _recipe(run),
    }


def curve_of(run: cotswold.Run) -> Curve:
    """Return the validations of a run so far."""
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
    """Return a curve with at most about a hundred points, including the last one."""
    count = len(curve.iterations)
    stride = -(-count // _POINTS) or 1
    chosen = sorted({*range(0, count, stride), count - 1})
    return {name: [values[each] for each in chosen] for name, values in asdict(curve).items()}


def _recipe(run: cotswold.Run) -> dict[str, Any]:
    """Return the fields of the recipe that affect accuracy."""
    recipe = run.recipe
    network = {"output": recipe.network.output, "output_scale": recipe.network.output_scale}
    training = recipe.training.model_dump(
        include={
            *("method", "beta", "line_search", "history_size", "portion_size"),
            *("sample_fraction", "cycle_iterations", "patience", "seed"),
        }
    )
    return {**recipe.objective.model_dump(), **network, **training}


def last(run: cotswold.Run, kind: str) -> Mapping[str, Any]:
    """Return the last event of a kind, or an empty mapping."""
    return next((event for event in reversed(run.events) if event["kind"] == kind), {})
