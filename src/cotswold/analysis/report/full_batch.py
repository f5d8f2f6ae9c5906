"""Report section on full-batch optimisation: curves against evaluations, seconds and FLOPs; events of the
method.

Knows: the history of a run of strategy `batch`. Does not know: networks, methods.
"""

from __future__ import annotations

from cotswold.analysis.plots import Line, plot
from cotswold.analysis.report.blocks import (
    Block,
    Drawing,
    Facts,
    Figure,
    FigureGrid,
    Items,
    PageSection,
    Paragraph,
)
from cotswold.analysis.run_history import Curve, History, PhaseHistory
from cotswold.phrases import counted
from cotswold.recipe import Recipe
from cotswold.recipe.schema import BatchTraining
from cotswold.ui.format import count, percent, scaled, three_figures

_AXES = (
    ("evaluations", "evaluations of value and gradient"),
    ("training_seconds", "seconds of training"),
    ("flops", "FLOPs"),
)
_METHODS = {"lbfgs": "L-BFGS", "cg": "Nonlinear conjugate gradient"}
_BETAS = {
    "polak-ribiere": "Polak-Ribière+",
    "hestenes-stiefel": "Hestenes-Stiefel",
    "dai-yuan": "Dai-Yuan",
    "hager-zhang": "Hager-Zhang",
}
_SEARCHES = {
    "wolfe": "strong Wolfe conditions, approximate ones where float32 hides a decrease",
    "approximate": "approximate Wolfe conditions",
    "bunyip": "Bunyip's (exponential steps, bracket by slopes on a fraction of the samples, a parabola)",
}
_REMARK_TITLES = {
    "restart": "Restarts with steepest descent",
    "skipped": "Skipped pairs, or factors β",
    "failure": "Line searches without a step",
}


def full_batch_section(recipe: Recipe, history: History) -> PageSection | None:
    """Return None for other strategies, and before the first iteration."""
    training, phase = recipe.training, history.phases.get(0)
    if not isinstance(training, BatchTraining) or phase is None or not phase.training.get("loss"):
        return None
    figures = [
        Figure(
            Drawing(plot(f"whole-{name}-{curve}", lines, x=label, y=curve)),
            f"{curve.capitalize()} against {label}",
        )
        for curve in ("loss", "accuracy")
        for name, label in _AXES
        if (lines := _lines(phase, curve, name))
    ]
    facts = FigureGrid([Facts(_facts(recipe, training, phase))])
    blocks: list[Block] = [FigureGrid(figures), facts]
    met = [
        f"{words}: {sum(history.remarks[kind].values())} ("
        + "; ".join(f"{why}: {times}" for why, times in sorted(history.remarks[kind].items()))
        + ")"
        for kind, words in _REMARK_TITLES.items()
        if history.remarks.get(kind)
    ]
    if met:
        blocks += [Paragraph("Events of the method:"), Items(met)]
    blocks.append(Paragraph(_FLOP_NOTE, "note"))
    return PageSection("Full-batch optimisation", "whole-set", blocks)


_FLOP_NOTE = (
    "FLOPs are counted as in Aberdeen et al. 2000 (section 6.2): products only; an evaluation of value and "
    "gradient of a network with one hidden layer takes n_p (4 n_i n_h + 6 n_h n_o). FLOPs of optimiser, "
    "reduction and validation are not counted, but their time is."
)


def _lines(phase: PhaseHistory, curve: str, axis: str) -> list[Line]:
    lines = []
    for colour, (label, curves) in enumerate(
        (("training", phase.training), ("validation", phase.validation))
    ):
        values, at = curves.get(curve, Curve()), curves.get(axis, Curve())
        steps = [step for step in values.steps if step in at.points]
        if steps:
            x, y = [at.points[step] for step in steps], [values.points[step] for step in steps]
            lines.append(Line(label, x, y, colour=colour, dots=len(steps) < 40))
    return lines


def _facts(recipe: Recipe, training: BatchTraining, phase: PhaseHistory) -> list[tuple[str, str]]:
    method = _METHODS[training.method]
    if training.method == "cg":
        method += f", {_BETAS[training.beta or 'polak-ribiere']}"
    found = [("Method", method), ("Line search", _SEARCHES[training.line_search])]
    last = {name: curve.values[-1] for name, curve in phase.training.items() if curve}
    for name, label, shown in (
        ("phase_step", "Iterations", count),
        ("evaluations", "Evaluations of value and gradient", count),
        ("partial_evaluations", "Slopes on a fraction of the samples", count),
        ("subset_samples", "Samples per evaluation", count),
        ("loss", "Loss", three_figures),
        ("gradient_norm", "Norm of the gradient", three_figures),
        ("flops", "FLOPs", lambda value: scaled(value, "FLOP")),
        ("workers", "Workers at the end", count),
    ):
        value = float(phase.training["loss"].steps[-1]) if name == "phase_step" else last.get(name)
        if value is not None and (value or name != "partial_evaluations"):
            found.append((label, shown(value)))
    if training.sample_fraction < 1:
        found.append(("Fraction of samples that ends an evaluation", percent(training.sample_fraction)))
    if not recipe.alone:
        cluster = recipe.cluster
        found.append(
            (
                "Requested processes",
                f"{counted(cluster.workers, 'worker')}, {counted(cluster.servers, 'server')}",
            )
        )
        found.append(("Transfer of the point", cluster.point_transfer.capitalize()))
    ended = phase.ended.get("reason")
    return [*found, *([("Ended", str(ended))] if ended else [])]
