"""Events of a run, sorted into curves, totals and facts.

Knows: the kinds of events that training writes. Does not know: how they are shown.

After a resumption, steps repeat; the later event of a step counts. A run of months writes millions of events;
a curve that grows too long drops every second point.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isfinite

from cotswold.run import Event

POINTS_MAX = 8192
"""Largest number of points of a curve, many more than are visible."""


@dataclass
class Curve:
    """Values against steps of one phase, in order."""

    points: dict[int, float] = field(default_factory=dict)

    def put(self, step: int, value: float) -> None:
        """Add a point, which replaces an earlier one of the same step."""
        self.points[step] = value
        if len(self.points) > POINTS_MAX:
            self.points = {step: self.points[step] for step in self.steps[::-2][::-1]}  # keeps the newest

    def cut(self, step: int) -> None:
        """Drop the points from a step on."""
        if self.points and next(reversed(self.points)) >= step:  # points are in order
            self.points = {each: value for each, value in self.points.items() if each < step}

    @property
    def steps(self) -> list[int]:
        """Steps with a value, ascending."""
        return sorted(self.points)

    @property
    def values(self) -> list[float]:
        """Values at `steps`."""
        return [self.points[step] for step in self.steps]

    def __bool__(self) -> bool:
        return bool(self.points)


@dataclass
class PhaseHistory:
    """One stack, or the single phase of a joint or supervised run: its curves by name, and its totals."""

    training: dict[str, Curve] = field(default_factory=dict)
    validation: dict[str, Curve] = field(default_factory=dict)
    rates: dict[str, dict[int, Curve]] = field(default_factory=dict)
    """Rates by name and session, against milliseconds of training."""
    facts: Event = field(default_factory=dict)
    """Fields of the `phase_start` event: maps, parameters."""
    ended: Event = field(default_factory=dict)
    """Fields of the `phase_end` event: seconds, samples, FLOPs."""


_LOSSES = {
    "cluster_samples_lost": "{sentence}",
    "cluster_restored": "{name} resumed from its disk with {sentence}",
    "cluster_disk": "{name}: {sentence}",
}
"""Sentences for events of losses."""


@dataclass
class History:
    """All data from the events that pages and figures need."""

    start: Event = field(default_factory=dict)
    whiteness: Event = field(default_factory=dict)
    end: Event = field(default_factory=dict)
    """Last `end` event; empty during training."""
    phases: dict[int, PhaseHistory] = field(default_factory=dict)
    waited_seconds: float = 0.0
    interval_seconds: float = 0.0
    """Seconds of training that include `waited_seconds`, the time spent waiting for samples."""
    seconds: float = 0.0
    resumptions: int = 0
    epochs: tuple[float, ...] = ()
    """Total epochs of each stack, or of all, after the last extension."""
    lost_seconds: float = 0.0
    """Seconds of the run before it restarted because it had ended before the first checkpoint."""
    remarks: dict[str, dict[str, int]] = field(default_factory=dict)
    """Messages of a full-batch method about its iterations (`restart`, `skipped`, `failure`), with counts."""

    process_events: dict[str, int] = field(default_factory=dict)
    """Number of process events, by kind."""
    losses: list[tuple[float, str]] = field(default_factory=list)
    """Losses of servers and failures of disks: seconds of the run, and a sentence."""

    @property
    def trains_layers(self) -> bool:
        """True if layers are trained with labels, under any strategy; otherwise stacks are trained."""
        return any(phase.facts.get("phase") == "layers" for phase in self.phases.values())

    @property
    def counts_evaluations(self) -> bool:
        """True if a step is an iteration of a full-batch method."""
        return any("evaluations" in phase.training for phase in self.phases.values())

    @property
    def counts_samples(self) -> bool:
        """True if a step is a completed sample, because replicas have no common step."""
        return any("staleness" in phase.training for phase in self.phases.values())

    @classmethod
    def from_events(cls, events: Iterable[Event]) -> History:
        """Return the history of a log."""
        history = cls()
        history.take_all(events)
        return history

    def take_all(self, events: Iterable[Event]) -> None:
        """Add events in order; those before a damaged one stay."""
        for event in events:
            self._add_event(event)

    def phase(self, number: int) -> PhaseHistory:
        """Return the phase of this number, from 0."""
        return self.phases.setdefault(number, PhaseHistory())

    def _add_event(self, event: Event) -> None:
        kind = event.get("kind")
        self.seconds = max(self.seconds, number(event, "seconds") or 0.0)
        if kind == "start":
            self.start = event
        elif kind == "whiteness":
            self.whiteness = event
        elif kind == "end":
            self.end = event
        elif kind == "resumed":
            self.end = {}
            self.resumptions += 1
        elif kind == "extended":
            totals = event.get("epochs")
            self.epochs = tuple(map(float, totals)) if isinstance(totals, list | tuple) else ()
        elif kind == "restarted":
            self._discard_lost_start(number(event, "lost_seconds") or 0.0)
        elif kind in ("phase_start", "phase_end", "step", "validation"):
            self._add_phase_event(str(kind), event)
        elif str(kind).startswith("cluster_"):
            self.process_events[str(kind)] = self.process_events.get(str(kind), 0) + 1
            if kind in _LOSSES:
                self.losses.append((number(event, "seconds") or 0.0, _LOSSES[kind].format_map(event)))

    def _discard_lost_start(self, lost_seconds: float) -> None:
        """Forget a start of the run that was lost."""
        self.end, self.phases, self.remarks = {}, {}, {}
        self.waited_seconds = self.interval_seconds = 0.0
        self.resumptions += 1
        self.lost_seconds = lost_seconds

    def _add_phase_event(self, kind: str, event: Event) -> None:
        phase = self.phase(int(number(event, "phase") or 0))
        if kind == "phase_start":
            phase.facts = event
        elif kind == "phase_end":
            phase.ended = event
        else:
            if kind == "step":
                self._add_rates(phase, event)
                self._add_remarks(event)
            curves = phase.training if kind == "step" else phase.validation
            step = number(event, "phase_step")
            step = number(event, "step") if step is None else step
            for name in event:
                value = number(event, name)
                if step is not None and value is not None and name not in _NO_CURVES:
                    curves.setdefault(name, Curve()).put(int(step), value)

    def _add_rates(self, phase: PhaseHistory, event: Event) -> None:
        waited = number(event, "waited_seconds")
        if waited is not None:  # a full-batch method waits for no samples
            self.waited_seconds += waited
            self.interval_seconds += number(event, "interval_seconds") or 0.0
        for name in RATE_FIELDS:
            value = number(event, name)
            if value is not None:
                seconds = number(event, "training_seconds")  # missing in old logs
                at = round(1000 * ((number(event, "seconds") or 0.0) if seconds is None else seconds))
                sessions = phase.rates.setdefault(name, {})
                for earlier in sessions.values():  # work that was lost in a pause was repeated
                    earlier.cut(at)
                sessions.setdefault(self.resumptions, Curve()).put(at, value)

    def _add_remarks(self, event: Event) -> None:
        for name in REMARK_FIELDS:
            said = event.get(name)
            if isinstance(said, str):
                times = self.remarks.setdefault(name, {})
                general = _mask_figures(said)
                times[general] = times.get(general, 0) + 1


def _mask_figures(sentence: str) -> str:
    """Replace the figures of a sentence, so that equal sentences are counted together."""
    return re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "…", sentence)


REMARK_FIELDS = ("restart", "skipped", "failure")
RATE_FIELDS = ("samples_per_second", "gflops")
_NO_CURVES = ("time", "seconds", "step", "phase_step", "phase_steps", "phase")


def number(event: Event, name: str) -> float | None:
    """Return a field if it is a finite number, else None."""
    value = event.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        return None
    return float(value)
