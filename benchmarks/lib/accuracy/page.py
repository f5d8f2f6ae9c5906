"""One page about the accuracy experiments: tables, curves by samples, settings of each run.

Knows: which figures are shown, and their captions. Does not know: how they were measured, HTML.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas

import cotswold
from cotswold.analysis.plots import Line, Palette, draw, plot
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
from cotswold.phrases import counted
from cotswold.ui.format import percent, three_figures
from lib.accuracy.cases import SYNCHRONOUS, Case
from lib.accuracy.summary import finals

Told = Mapping[str, Any]
_CURVES = (("accuracy", "errors, % of validation samples"), ("loss", "loss"))


def page(found: Told, cases: Sequence[Case]) -> str:
    """Return the whole page as HTML."""
    rows = found["summary"]["rows"]
    numbers = [
        (percent(each["test"], 2), f"{each['case']}, {counted(each['replicas'], 'replica')}") for each in rows
    ]
    return page_html(
        Page(
            title="Accuracy with one replica and with several",
            summary=(
                "The networks of Chilimbi et al. 2014, sections 4.3 and 4.4, with ordinary SGD and with "
                "asynchronous replicas, simulated event by event with real gradients at the parameters "
                "that each replica pulled."
            ),
            numbers=numbers or [("none", "cells finished")],
            problems=[],
            sections=[_accuracies(rows, cases), _claim(found), *_curves(found, cases), _tuning(found)],
            footer=f"Cotswold {cotswold.__version__}, {found['machine']['processor']}. {found['command']}",
        )
    )


def drawing(found: Told, cases: Sequence[Case]) -> str:
    """Return the curves of all cases as one SVG."""
    shown = [each for each in cases if finals(found["cells"], each.name)]
    with mpl.rc_context({"svg.hashsalt": "adam-accuracy", "font.size": 9}):
        canvas = Canvas(figsize=(8.6, 3.2 * max(1, len(shown))), layout="constrained")
        for place, case in enumerate(shown):
            for column, (what, words) in enumerate(_CURVES):
                axes = canvas.add_subplot(len(shown), 2, 2 * place + column + 1)
                curves = lines(found, case.name, what)
                draw(axes, curves, Palette(), x="samples", y=words, scale="log")
                axes.set_title(case.name, fontsize=9)
        buffer = io.StringIO()
        canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _accuracies(rows: Sequence[Told], cases: Sequence[Case]) -> PageSection:
    paper = {each.name: each.paper for each in cases}
    head = [
        "Case",
        "Replicas",
        "Test",
        "Spread",
        "Validation",
        "Seeds",
        "Staleness",
        "Rule and rate",
        "Wanted",
    ]
    table = [
        [
            TableCell(each["case"], _paper(paper[each["case"]])),
            TableCell(str(each["replicas"])),
            TableCell(percent(each["test"], 2), best=bool(each["is_met"])),
            TableCell(
                "one seed" if each["deviation"] is None else f"± {percent(each['deviation'], 2)}",
                f"{percent(each['least'], 2)} to {percent(each['greatest'], 2)}",
            ),
            TableCell(percent(each["validation"], 2)),
            TableCell(str(each["seeds"])),
            TableCell(three_figures(each["staleness"])),
            TableCell(each["rule"]),
            TableCell("" if each["bar"] is None else percent(each["bar"], 2)),
        ]
        for each in rows
        if each["case"] in paper
    ]
    blocks: list[Block] = [Table(head, table)] if table else [Paragraph("No cell is finished.")]
    return PageSection("Accuracy", "accuracy", [*blocks, Paragraph(_ACCURACY, "note")])


_ACCURACY = (
    "Mean over seeds of the fraction of test samples classified correctly, with the last parameters of a "
    "run; ± is the standard deviation between seeds. Test samples are evaluated once, at the end of a run; "
    "every choice is made on validation samples. Staleness: mean number of other updates applied between a "
    "pull and the update computed from it."
)


def _paper(stated: Sequence[tuple[str, float]]) -> str:
    return ", ".join(f"paper, {name}: {percent(value, 2)}" for name, value in stated)


def _claim(found: Told) -> PageSection:
    """Return the section about the effect of asynchrony."""
    rows = [
        row(
            each["case"],
            str(each["replicas"]),
            f"{each['points']:+.3f}",
            "" if each["low"] is None else f"{each['low']:+.3f} to {each['high']:+.3f}",
            str(each["seeds"]),
            each["asynchrony"],
        )
        for each in found["summary"]["compared"]
    ]
    head = ["Case", "Replicas", "Points more\nthan one replica", "95 % interval", "Seeds", "Asynchrony"]
    blocks: list[Block] = [Table(head, rows)] if rows else [Paragraph("There are no pairs to compare.")]
    return PageSection("Does asynchrony help?", "asynchrony", [*blocks, Paragraph(_CLAIM, "note")])


_CLAIM = (
    "The paper has 99.39 % with its best synchronous training of the network on MNIST and 99.63 % with "
    "asynchronous training, 0.24 points more, and says that the noise of asynchrony helps to generalise. "
    "Here runs of the same seed (initial parameters, order of samples) are compared; the interval is "
    "Student's, over seeds. One replica uses the recipe's rule and rate; every other number chose from five "
    "pairs of rule and rate, on validation samples."
)


def _curves(found: Told, cases: Sequence[Case]) -> Iterator[PageSection]:
    for case in cases:
        if not finals(found["cells"], case.name):
            continue
        figures = [
            Figure(
                Drawing(
                    plot(
                        f"accuracy-{case.name}-{what}",
                        lines(found, case.name, what),
                        x="samples",
                        y=words,
                        scale="log",
                    )
                ),
                f"{case.name}: {words}",
            )
            for what, words in _CURVES
        ]
        yield PageSection(case.name, f"curves-{case.name}", [FigureGrid(figures), Paragraph(_CURVE, "note")])


_CURVE = (
    "By samples learnt by all replicas together. Solid lines are means over seeds, dashed lines the "
    "least and greatest values. Measured on validation samples, without dropout."
)


def lines(found: Told, case: str, what: str) -> list[Line]:
    """Return a mean for each number of replicas, with its spread if there are several seeds."""
    drawn = []
    for colour, (replicas, of) in enumerate(finals(found["cells"], case).items()):
        ways = [cell["way"][1:] for cell in of.values()]
        entries = list(zip(*ways, strict=False))
        x = [mean(each["samples"] for each in entry) for entry in entries]
        values = [[_value(each, what) for each in entry] for entry in entries]
        middle = [mean(each) for each in values]
        name = "one replica" if replicas == SYNCHRONOUS else f"{replicas} replicas"
        drawn.append(Line(name, x, middle, colour))
        if len(of) > 1:
            for outermost in (min, max):
                drawn.append(Line("_spread", x, [outermost(each) for each in values], colour, dashed=True))
    return drawn


def _value(entry: Told, what: str) -> float:
    if what == "accuracy":
        return max(1e-3, 100 * (1 - float(entry["accuracy"])))
    return float("nan") if entry["loss"] is None else float(entry["loss"])


def _tuning(found: Told) -> PageSection:
    rows = []
    for key, cell in found["cells"].items():
        if key.startswith("tune; "):
            _, case, replicas, candidate = key.split("; ")
            loss = cell["way"][-1]["loss"]
            told = "" if loss is None else f"{loss:.4f}"
            rows.append(
                row(case, replicas, candidate, told, percent(cell["validation"], 2), str(cell["epochs"]))
            )
    head = ["Case", "Replicas", "Rule and rate", "Validation loss", "Validation", "Epochs"]
    blocks: list[Block] = (
        [Table(head, rows)] if rows else [Paragraph("No tuning: all runs use the recipe's rate.")]
    )
    note = "Short runs with a seed that is not used again; the least validation loss wins."
    return PageSection("How rates were chosen", "tuning", [*blocks, Paragraph(note, "note")])
