"""The progress of a training run on the terminal: bars if there is one, otherwise lines.

Knows: the columns of progress, events. Does not know: the work in progress, files, tensors.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import TextIO

from cotswold.ui import terminal
from cotswold.ui.async_table import evaluator_lines, tables
from cotswold.ui.describe import describe, figures, phase_name
from cotswold.ui.event_summary import EventSummary
from cotswold.ui.format import as_number, time_left
from cotswold.ui.terminal import printable, redirect_to_null

_REFRESHES = 4
"""Refreshes per second; a table of replicas takes some milliseconds of a core that replicas also use."""
_BAR_WIDTH = 24
ENOUGH_STEPS = 3
ENOUGH_SECONDS = 30.0
"""Seconds after which fewer steps suffice for an estimate."""


class TrainingDisplay:
    """Shows the events of a run as they arrive. Raises OSError if the stream is closed."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self._rich = _Bars(self.stream) if self.stream.isatty() else None
        self._last_line, self._last_validation = 0.0, -inf
        self._pending_line: str | None = None
        """The last validation that was not shown."""
        self._time_left = Estimate()
        self._evaluation = _EvaluationProgress()
        self._summary = EventSummary()

    def __enter__(self) -> TrainingDisplay:
        if self._rich:
            self._rich.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._rich:
            try:
                self._rich.progress.stop()
            except OSError:
                redirect_to_null(self.stream)

    def __call__(self, event: Mapping[str, object]) -> None:
        """Show one event."""
        for said in self._summary.take(event):
            self._print(printable(said))
        if event["kind"] == "portions":
            self._portions(event)
            return
        if event["kind"] == "replicas":
            if self._rich:
                self._rich.replicas(event)
            return
        left = self._time_left(event) if event["kind"] == "step" else None
        line = describe(event, left)
        if event["kind"] == "step":
            if self._rich:
                self._rich.step(event, left)
                return
            done = event.get("phase_step") == event.get("phase_steps")
            if not done and time.monotonic() - self._last_line < terminal.line_seconds():
                return
            self._last_line = time.monotonic()
        if event["kind"] == "validation":
            is_due = self._is_due()
            self._pending_line = None if is_due else line
            if not is_due:
                return
        if line is None:
            return
        if event["kind"] == "end" and self._pending_line is not None:  # the final result
            print(self._pending_line, file=self.stream, flush=True)
            self._pending_line = None
        self._print(line)

    def _print(self, line: str) -> None:
        if self._rich:
            self._rich.progress.console.print(line, highlight=False, markup=False)
        else:
            print(line, file=self.stream, flush=True)

    def _is_due(self) -> bool:
        """Return True if a validation is shown: always on a terminal, elsewhere one every few seconds."""
        now = time.monotonic()
        if self._rich is None and now - self._last_validation < terminal.line_seconds():
            return False
        self._last_validation = now
        return True

    def _portions(self, event: Mapping[str, object]) -> None:
        """Show the progress of an evaluation of the whole training set."""
        self._evaluation.take(event)
        figures = self._evaluation.figures(event)
        if self._rich:
            self._rich.evaluation(event, figures)
        elif time.monotonic() - self._last_line >= terminal.line_seconds():
            self._last_line = time.monotonic()
            done, portions = as_number(event["portions_done"]), as_number(event["portions"])
            place = f"evaluation {event['evaluation']}: {done:.0f} of {portions:.0f} portions"
            print(", ".join(filter(None, (place, figures))), file=self.stream, flush=True)


class _EvaluationProgress:
    """Estimates the remaining time of an evaluation from the finished portions."""

    def __init__(self) -> None:
        self._evaluation: object = None
        self._began, self._first = 0.0, 0.0

    def take(self, event: Mapping[str, object]) -> None:
        """Record the start of an evaluation."""
        if event["evaluation"] != self._evaluation:
            self._evaluation = event["evaluation"]
            self._began, self._first = time.monotonic(), as_number(event["portions_done"])

    def figures(self, event: Mapping[str, object]) -> str:
        """Return workers, current loss and remaining time."""
        done, of = as_number(event["portions_done"]), as_number(event["portions"])
        seconds = time.monotonic() - self._began
        left = (of - done) * seconds / (done - self._first) if done > self._first else None
        workers, backups = int(as_number(event.get("workers"))), int(as_number(event.get("backup_tasks")))
        words = [
            *([f"{workers} workers"] if workers > 1 else []),
            *([f"{backups} backup copies"] if backups else []),
            *([] if event["value"] is None else [f"loss {as_number(event['value']):.5g}"]),
            *([time_left(left)] if left is not None else []),
        ]
        return ", ".join(words)


class _Bars:
    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console, RenderableType
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TaskID,
            TextColumn,
        )
        from rich.text import Text

        class Shown(Progress):
            """Bars with content above and below."""

            above: Sequence[RenderableType] = ()
            below = ""

            def get_renderables(self) -> Iterator[RenderableType]:
                yield from self.above
                yield self.make_tasks_table(self.tasks)
                if self.below:
                    yield Text(self.below)

        self.progress = Shown(
            TextColumn("{task.description}"),
            BarColumn(bar_width=_BAR_WIDTH),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TextColumn("{task.fields[left]}"),
            console=Console(file=stream),
            refresh_per_second=_REFRESHES,
        )
        self.tasks: dict[object, TaskID] = {}

    def step(self, event: Mapping[str, object], left: float | None) -> None:
        phase = event["phase"]
        if phase not in self.tasks:
            self.tasks[phase] = self.progress.add_task(phase_name(phase), total=None, figures="", left="")
        total = as_number(event["phase_steps"]) if "phase_steps" in event else None
        said, at = figures(event), as_number(event["phase_step"])
        place = f"{phase_name(phase)}  {at:.0f}/{total or 0:.0f}  {time_left(left)}"
        is_narrow = len(place) + len(said) + _BAR_WIDTH + 4 > self.progress.console.width
        self.progress.below = said if is_narrow else ""
        self.progress.update(
            self.tasks[phase],
            completed=at,
            total=total,
            figures="" if is_narrow else said,
            left=time_left(left),
        )

    def replicas(self, event: Mapping[str, object]) -> None:
        """Show a row per replica and a row per server, above the bars."""
        shown = tables(event, self.progress.console.height)
        self.progress.above = [str(event["activity"]), *shown, *evaluator_lines(event)]
        self.progress.refresh()

    def evaluation(self, event: Mapping[str, object], figures: str) -> None:
        """Show the progress of an evaluation, in a line below that of the iterations."""
        if "evaluation" not in self.tasks:
            self.tasks["evaluation"] = self.progress.add_task("evaluation", total=None, figures="", left="")
        self.progress.update(
            self.tasks["evaluation"],
            completed=as_number(event["portions_done"]),
            total=as_number(event["portions"]),
            figures=figures,
        )


class Estimate:
    """Estimates the remaining seconds of a phase from the steps so far.

    The first interval of a phase is ignored, because kernels are compiled and caches filled in it.
    """

    def __init__(self) -> None:
        self._phase: object = None
        self._steps = self._seconds = self._at = 0.0

    def __call__(self, event: Mapping[str, object]) -> float | None:
        """Return the remaining seconds after a step event; None while too little is known."""
        if event["phase"] != self._phase:
            self._phase, self._steps, self._seconds = event["phase"], 0.0, 0.0
            self._at = as_number(event.get("phase_step"))
            return None
        at, self._at = self._at, as_number(event.get("phase_step"))
        # replicas count settled samples, everything else counts steps
        self._steps += self._at - at if "replicas" in event else as_number(event.get("interval_steps", 1))
        self._seconds += as_number(event["interval_seconds"])
        if "phase_steps" not in event or (self._steps < ENOUGH_STEPS and self._seconds < ENOUGH_SECONDS):
            return None
        left = as_number(event["phase_steps"]) - as_number(event["phase_step"])
        return left * self._seconds / self._steps if self._steps > 0 else None
