"""Runs of a supervised recipe on random or learnt stacks, and their results.

Knows: how a run is trained, its curve, how it is evaluated; the plot and page of all runs. Does not know: the
command, rates, the order of the cells.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure as Canvas

import cotswold
from cotswold.analysis.classification import Classification
from cotswold.analysis.plots import Line, plot
from cotswold.analysis.report.blocks import (
    Block,
    Drawing,
    Figure,
    FigureGrid,
    Page,
    PageSection,
    Paragraph,
    Table,
    TableCell,
    row,
)
from cotswold.analysis.report.build import page_html
from cotswold.bench.measure import Document, rounded
from cotswold.errors import MachineError
from cotswold.files import disk_errors, replace_file
from cotswold.recipe import Recipe, dump, parse
from cotswold.ui.format import duration, percent
from lib.predictions.plots import COLOURS, KEPT, STYLE


@dataclass(frozen=True)
class Arm:
    """Origin of the filters, and whether they are tuned with labels."""

    learnt: bool
    tuned: bool


ARMS = {
    "learnt filters, tuned": Arm(True, True),
    "random filters, tuned": Arm(False, True),
    "learnt filters, kept": Arm(True, False),
    "random filters, kept": Arm(False, False),
}


class Images:
    """A supervised recipe and the recipe of its filters."""

    def __init__(
        self, recipe: Recipe, filters: str, epochs: float, filter_epochs: float, runs: Path, stores: Path
    ) -> None:
        self._recipe, self._filters, self._runs, self._stores = recipe, filters, runs, stores
        self._epochs, self._filter_epochs = epochs, filter_epochs

    def filters(self, seed: int) -> Document:
        """Learn filters without labels; return the decrease of each stage's validation objective."""
        run = cotswold.train_recipe(
            self._filters,
            directory=self._learnt(seed),
            overrides=[f"training.epochs={self._filter_epochs}", f"training.seed={seed}"],
            stores=self._stores,
            resume="if_started",
            progress=False,
        )
        losses: dict[Any, list[float]] = {}
        for event in run.events:
            if event["kind"] == "validation":
                losses.setdefault(event["phase"], []).append(float(str(event["loss"])))
        fall = [rounded(1 - curve[-1] / curve[0]) for curve in losses.values()]
        return {"seed": seed, "fall": fall, "seconds": _seconds(run)}

    def cell(self, arm: Arm, rate: float, seed: int, *, is_judged: bool = False) -> Document:
        """Train with labels.

        Return the validation accuracy after the last epoch and, if ``is_judged``, the accuracy of the same
        parameters on held-out images.
        """
        if arm.learnt and not self._learnt(seed).is_dir():
            self.filters(seed)
        words = [
            f"training.epochs={self._epochs}",
            f"training.learning_rate={rate}",
            f"training.seed={seed}",
            f"network.backbone={self._learnt(seed) if arm.learnt else self._filters}",
            f"network.finetune={str(arm.tuned).lower()}",
        ]
        place = self._runs / "now"
        shutil.rmtree(place, ignore_errors=True)
        run = cotswold.train_recipe(
            parse(dump(self._recipe), overrides=words), directory=place, stores=self._stores, progress=False
        )
        curve = [event for event in run.events if event["kind"] == "validation" and "accuracy" in event]
        losses = [float(str(event["loss"])) for event in curve]
        accuracies = [rounded(float(str(event["accuracy"]))) for event in curve]
        found: Document = {
            "rate": rate,
            "seed": seed,
            "validation": accuracies[-1],
            "losses": [rounded(loss) for loss in losses],
            "accuracies": accuracies,
            "seconds": _seconds(run),
        }
        if is_judged:
            # the least loss precedes the best accuracy by far: delete its checkpoint, so that the last is
            # evaluated
            shutil.rmtree(run.directory.best, ignore_errors=True)
            judged = cotswold.evaluate(run, progress=False)
            assert isinstance(judged, Classification), "a recipe with categories"
            found |= {"test": rounded(judged.accuracy), "mean_over_classes": rounded(_over_classes(judged))}
            found |= {"samples": judged.samples, "classes": len(judged.classes)}
        shutil.rmtree(place, ignore_errors=True)
        return found

    def _learnt(self, seed: int) -> Path:
        return (self._runs / f"filters-{seed}").absolute()


def _over_classes(found: Classification) -> float:
    """Return the mean of the classes' accuracies, without classes that have no image."""
    return float(
        np.mean([each[label] / sum(each) for label, each in enumerate(found.confusion) if sum(each)])
    )


def _seconds(run: Any) -> float:
    ended = next(event for event in reversed(run.events) if event["kind"] == "end")
    return rounded(float(ended["training_seconds"]))


def lines(found: Mapping[str, Any]) -> list[Line]:
    """Return the validation accuracy after each epoch, as a mean over seeds for each way."""
    drawn = []
    for colour, name in enumerate(ARMS):
        curves = [cell["accuracies"] for key, cell in found["cells"].items() if key.startswith(f"{name};")]
        if curves:
            length = min(map(len, curves))
            mean = np.mean([curve[:length] for curve in curves], axis=0)
            drawn.append(Line(name, range(length), [100 * float(one) for one in mean], colour))
    return drawn


def draw_images(found: Mapping[str, Any], folder: Path) -> None:
    """Write distbelief-images.svg: validation accuracy of every seed after each epoch."""
    with mpl.rc_context({**STYLE, "svg.hashsalt": "distbelief-images"}):
        figure = Canvas(figsize=(5.6, 3.6), layout="constrained")
        axes = figure.add_subplot()
        for name, colour in zip(ARMS, COLOURS, strict=False):
            label: str | None = name
            for key, cell in found["cells"].items():
                if key.startswith(f"{name};"):
                    axes.plot([100 * one for one in cell["accuracies"]], color=colour, label=label)
                    label = None
        axes.set(xlabel="epoch", ylabel="% of validation images")
        axes.grid(alpha=0.2)
        if axes.lines:
            axes.legend()
        figure.savefig(folder / "distbelief-images.svg", **KEPT)


def report(found: Mapping[str, Any], folder: Path) -> None:
    """Write distbelief-images.html: accuracies, curves, rates tried."""
    told = found["summary"]
    numbers = [(percent(each["test"]), each["way"]) for each in told["rows"]]
    sections = [_accuracies(told), _curves(found), _rates(found)]
    text = page_html(
        Page(
            title="Images by untied local filters",
            summary=(
                "Three stages of untied local filters, pooling and contrast normalisation, then one logistic "
                "output per category against all others (Dean et al. 2012, section 5), on Caltech-101: "
                "filters at random, and filters learnt without labels."
            ),
            numbers=numbers,
            problems=[],
            sections=[each for each in sections if each.blocks],
            footer=f"Cotswold {cotswold.__version__}, {found['machine']['processor']}. {found['command']}",
        )
    )
    place = folder / "distbelief-images.html"
    with disk_errors(place, MachineError, "free some"):
        replace_file(place, text.encode())


def _accuracies(told: Mapping[str, Any]) -> PageSection:
    best = max((each["test"] for each in told["rows"]), default=None)
    table = [
        [
            TableCell(each["way"]),
            TableCell(percent(each["test"]), _range(each), each["test"] == best),
            TableCell(percent(each["mean_over_classes"])),
            TableCell(percent(each["validation"])),
            TableCell(f"{each['rate']:g}"),
        ]
        for each in told["rows"]
    ]
    blocks: list[Block] = []
    if table:
        blocks.append(Table(["", "Held-out", "Mean over\ncategories", "Validation", "Rate"], table))
    for gain in told["gains"]:
        each = ", ".join(f"{one:+.1f}" for one in gain["each"])
        blocks.append(
            Paragraph(f"{gain['of']} over {gain['over']}: {gain['points']:+.1f} points ({each}, by seed).")
        )
    return PageSection("Held-out accuracy", "accuracy", blocks)


def _range(told: Mapping[str, Any]) -> str:
    return f"{percent(told['least'])} to {percent(told['greatest'])}, {told['seeds']} seeds"


def _curves(found: Mapping[str, Any]) -> PageSection:
    drawn = lines(found)
    if not drawn:
        return PageSection("Learning", "learning", [])
    svg = plot("images", drawn, x="epoch", y="% of validation images", bottom=0)
    caption = "Validation accuracy after each epoch, mean over seeds"
    return PageSection("Learning", "learning", [FigureGrid([Figure(Drawing(svg), caption)])])


def _rates(found: Mapping[str, Any]) -> PageSection:
    """Return the section with the runs that chose the rates."""
    tried: Sequence[tuple[str, Any]] = [
        (key, cell) for key, cell in found["cells"].items() if key.startswith("tune;")
    ]
    table = [
        row(
            key.split("; ")[1],
            f"{cell['rate']:g}",
            percent(cell["validation"]),
            duration(cell["seconds"]),
        )
        for key, cell in tried
    ]
    note = "Validation accuracy after the last epoch, which decides the choice."
    head = ["", "Rate", "Validation", "Time"]
    blocks: list[Block] = [Table(head, table), Paragraph(note, "note")] if table else []
    return PageSection("Rates tried", "rates", blocks)
