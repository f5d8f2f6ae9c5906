"""Learning curves of a run, one panel each: lines of training and of validation, and a caption.

Knows: the history of a run, how to thin long curves. Does not know: how a panel is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cotswold.analysis.plots import Line
from cotswold.analysis.run_history import Curve, History, PhaseHistory
from cotswold.ui.format import percent, three_figures

_POINTS = 240  # more than a plot of this width can show
_NO_METRICS = ("loss", "accuracy", "training_seconds", "validation_seconds", "evaluations", "flops")
"""Numbers of validation events that are no further metrics."""


@dataclass(frozen=True)
class Panel:
    """Content of one plot; ``name`` identifies it within the run."""

    name: str
    lines: Sequence[Line]
    x: str
    y: str
    caption: str


def learning_panels(history: History) -> list[Panel]:
    """Return panels of learning curves, one per stack, or loss, accuracy and metrics of a supervised run."""
    found = []
    x = "samples" if history.counts_samples else "step"
    for number, phase in sorted(history.phases.items()):
        if history.trains_layers:
            found += [
                _panel(phase, "loss", "loss", "loss", x=x),
                _panel(phase, "accuracy", "accuracy", "accuracy", x=x),
                *(
                    _panel(phase, name, name.replace("_", " "), f"metric-{position}", x=x)
                    for position, name in enumerate(_metrics_of(phase))
                ),
            ]
        else:
            found.append(_objective(number, phase, alone=len(history.phases) == 1))
    return [panel for panel in found if panel is not None]


def _metrics_of(phase: PhaseHistory) -> list[str]:
    """Names of the metrics of validation, without loss and accuracy, in their order."""
    return [name for name in phase.validation if name not in _NO_METRICS]


def _objective(number: int, phase: PhaseHistory, alone: bool) -> Panel | None:
    caption = "All stacks" if alone and "stacks" in phase.facts else f"Stack {number + 1}"
    validation = phase.validation.get("loss", Curve())
    if len(validation.values) > 1 and validation.values[0] > 0:
        first, last = validation.values[0], validation.values[-1]
        sign, change = "+" if last > first else "−", percent(abs(last / first - 1))
        caption += f": validation objective {three_figures(first)} → {three_figures(last)} ({sign}{change})"
    return _panel(phase, "loss", "objective", f"objective-{number}", caption)


def _panel(
    phase: PhaseHistory, curve: str, label: str, name: str, caption: str | None = None, x: str = "step"
) -> Panel | None:
    training, validation = phase.training.get(curve, Curve()), phase.validation.get(curve, Curve())
    lines = []
    if training:
        lines.append(Line("training", *thin_curve(training)))
    if validation:
        lines.append(Line("validation", validation.steps, validation.values, colour=1, dots=True))
    if not lines:
        return None
    if caption is None:
        caption = label.capitalize()
        if validation:
            last = validation.values[-1]
            caption += (
                f", final validation value {percent(last) if curve == 'accuracy' else three_figures(last)}"
            )
    return Panel(name, lines, x, label, caption)


def thin_curve(curve: Curve) -> tuple[list[int], list[float]]:
    """Return at most as many points as are visible: the last of neighbouring steps, their mean value."""
    steps, values = curve.steps, curve.values
    stride = -(-len(steps) // _POINTS)
    starts = range(0, len(steps), stride)
    means = [sum(values[s : s + stride]) / len(values[s : s + stride]) for s in starts]
    return [steps[min(s + stride, len(steps)) - 1] for s in starts], means
