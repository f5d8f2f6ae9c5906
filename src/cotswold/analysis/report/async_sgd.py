"""Report section on replicas: curves against time, staleness, active replicas, outcomes of samples.

Knows: the history of a run of strategy `downpour`. Does not know: networks, rules, processes.
"""

from __future__ import annotations

from cotswold.analysis.learning_curves import thin_curve
from cotswold.analysis.plots import Line, Scale, plot
from cotswold.analysis.report.blocks import (
    Block,
    Drawing,
    Facts,
    Figure,
    FigureGrid,
    Heading,
    PageSection,
    Paragraph,
    Table,
    TableCell,
    row,
)
from cotswold.analysis.run_history import Curve, History, PhaseHistory, number
from cotswold.phrases import counted
from cotswold.recipe import Recipe
from cotswold.recipe.schema import DownpourTraining
from cotswold.ui.format import count, duration, percent, scaled, three_figures

_SECONDS = "seconds of training"
_RULES = {
    "sgd": "SGD",
    "momentum": "SGD with momentum",
    "adagrad": "Adagrad, with sums that all replicas share",
}
_OUTCOME_ROWS = (
    ("samples_counted", "Counted", "every server applied their updates"),
    ("samples_torn", "Torn", "some servers applied their updates, others did not"),
    ("samples_refused", "Refused", "no server accepted their updates: not finite, or too stale"),
    ("samples_lost", "Lost", "a replica or a server ended; the samples were assigned again, or skipped"),
    ("samples_left_out", "Skipped", "not assigned when the epoch ended"),
)
_KINDS = {"gradient": "gradients", "delta": "deltas"}
_LOSSES_MOST = 30
_FINAL = ("samples_counted", "samples_torn", "samples_refused", "samples_left_out")
"""Final outcomes; lost samples are assigned again, and then counted in one of these."""


def replicas(recipe: Recipe, history: History) -> PageSection | None:
    """Return None for other strategies, and before the first results."""
    training, phase = recipe.training, history.phases.get(0)
    if not isinstance(training, DownpourTraining) or phase is None or not phase.training.get("loss"):
        return None
    curves = [_learning(phase, name) for name in ("loss", "accuracy")]
    more = [
        _figure(
            phase,
            "staleness",
            [("staleness", "mean"), ("staleness_max", "maximum")],
            "updates",
            _STALE,
            "symlog",
        ),
        _figure(phase, "replicas", [("replicas", "replicas")], "replicas", "Connected replicas"),
        _figure(phase, "queue", [("queued_bytes", "bytes")], "bytes", "Queued updates on the servers"),
    ]
    figures = [each for each in (*curves, *more) if each is not None]
    blocks: list[Block] = [FigureGrid(figures), FigureGrid([Facts(_facts(recipe, training, history, phase))])]
    fates = _outcome_rows(phase)
    if fates:
        blocks += [
            Heading("Outcomes of samples"),
            Table(["", ""], fates, "words"),
            Paragraph(_SHARES, "note"),
        ]
    pushed = _push_rows(phase)
    if pushed:
        blocks += [Heading("Pushed bytes"), Table(["", ""], pushed, "words")]
    if history.losses:
        blocks += [Heading("Servers and their disks"), Table(["seconds", ""], _losses(history), "words")]
    return PageSection("Replicas", "replicas", blocks)


_STALE = (
    "Staleness: updates that a shard applied between the pull that an update was computed from and that "
    "update; mean and largest over all updates so far"
)
_SHARES = (
    "Percentages refer to all samples of the finished epochs and the current one; lost samples that were "
    "assigned again are also counted by their final outcome."
)


def _learning(phase: PhaseHistory, name: str) -> Figure | None:
    """Return a figure of training and validation against seconds."""
    lines = [
        Line(label, x, y, colour=colour, dots=len(x) < 40)
        for colour, (label, curves) in enumerate(
            (("training", phase.training), ("validation", phase.validation))
        )
        for x, y in [_against_seconds(curves, name)]
        if x
    ]
    if not lines:
        return None
    drawn = plot(f"replicas-{name}", lines, x=_SECONDS, y=name)
    return Figure(Drawing(drawn), f"{name.capitalize()} against time")


def _figure(
    phase: PhaseHistory,
    identity: str,
    named: list[tuple[str, str]],
    unit: str,
    caption: str,
    scale: Scale = "linear",
) -> Figure | None:
    """Return a figure of curves of training against seconds, from 0."""
    lines = [
        Line(label, x, y, colour=colour, dots=len(x) == 1)
        for colour, (name, label) in enumerate(named)
        for x, y in [_against_seconds(phase.training, name)]
        if x
    ]
    if not lines or not any(max(line.y) for line in lines):
        return None
    drawn = plot(f"replicas-{identity}", lines, x=_SECONDS, y=unit, bottom=0, scale=scale)
    return Figure(Drawing(drawn), caption)


def _against_seconds(curves: dict[str, Curve], name: str) -> tuple[list[float], list[float]]:
    values, at = curves.get(name, Curve()), curves.get("training_seconds", Curve())
    common = Curve({step: values.points[step] for step in values.steps if step in at.points})
    if not common:
        return [], []
    steps, shown = thin_curve(common)
    return [at.points[step] for step in steps], shown


def _facts(
    recipe: Recipe, training: DownpourTraining, history: History, phase: PhaseHistory
) -> list[tuple[str, str]]:
    cluster = recipe.cluster
    last = {name: curve.values[-1] for name, curve in phase.training.items() if curve}
    asked = f"{counted(cluster.workers, 'replica')}, {counted(cluster.servers, 'server')}"
    if cluster.controllers is not None:
        asked = f"{counted(cluster.workers, 'replica')}; servers of the cluster at {cluster.controllers}"
    found = [
        ("Requested processes", asked),
        ("Update rule", _RULES.get(training.update_rule, training.update_rule)),
        ("Learning rate", three_figures(training.learning_rate)),
        ("Steps between pulls, between pushes, at least", f"{training.pull_every}, {training.push_every}"),
        ("Staleness bound", "none" if training.max_staleness is None else _bound(training)),
        ("An epoch ends with", f"{percent(training.epoch_fraction)} of the {training.epoch_fraction_of}"),
    ]
    since = ", since the last resume" if history.resumptions else ""
    for name, label, shown in (
        ("push_samples", f"Mean samples per push{since}", three_figures),
        ("updates", "Applied updates, counted per shard", count),
        ("staleness", f"Mean staleness{since}", three_figures),
        ("staleness_max", f"Largest staleness{since}", count),
        ("dirty_seconds_max", f"Largest age of a change that was on no disk{since}", duration),
    ):
        if name in last:
            found.append((label, shown(last[name])))
    wire = number(history.end, "wire_bytes")
    if wire:
        found.append(("Sent by the coordinator", scaled(wire, "B")))
    recovered = history.process_events.get("cluster_recovered", 0)
    if recovered:
        found.append(("Buckets restored from disks", count(recovered)))
    lost = history.process_events.get("cluster_lost", 0)
    if lost:
        found.append(("Lost replicas that were restarted", count(lost)))
    return found


def _bound(training: DownpourTraining) -> str:
    policy = _STALENESS_POLICIES[training.staleness_policy or "wait"]
    return f"{training.max_staleness}, beyond which updates {policy}"


_STALENESS_POLICIES = {"wait": "wait", "scale": "are scaled down", "drop": "are dropped"}


def _push_rows(phase: PhaseHistory) -> list[list[TableCell]]:
    """Return one row per layer: bytes of each kind of update."""
    layers = phase.ended.get("pushed_bytes_by_layer")
    return [
        row(
            str(layer),
            ", ".join(
                f"{scaled(float(each), 'B')} as {_KINDS.get(kind, kind)}" for kind, each in kinds.items()
            ),
        )
        for layer, kinds in (layers.items() if isinstance(layers, dict) else ())
        if isinstance(kinds, dict)
    ]


def _losses(history: History) -> list[list[TableCell]]:
    """Return one row for each loss, and for each failure of a disk."""
    rows = [row(three_figures(seconds), sentence) for seconds, sentence in history.losses[-_LOSSES_MOST:]]
    before = len(history.losses) - len(rows)
    return [row("", f"{count(before)} earlier ones"), *rows] if before else rows


def _outcome_rows(phase: PhaseHistory) -> list[list[TableCell]]:
    """Return one row for each outcome of samples."""
    known = {name: number(phase.ended, name) for name, _, _ in _OUTCOME_ROWS}
    if not any(known.values()):
        known = {
            name: curve.values[-1] for name, _, _ in _OUTCOME_ROWS if (curve := phase.training.get(name))
        }
    whole = sum(known.get(name) or 0.0 for name in _FINAL)
    if not whole:
        return []
    return [
        [TableCell(label), TableCell(f"{count(value)} ({percent(value / whole, 2)})", said)]
        for name, label, said in _OUTCOME_ROWS
        for value in [known.get(name) or 0.0]
    ]
