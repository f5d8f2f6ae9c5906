"""Progress on the terminal: bars if there is one, otherwise lines.

Knows: the texts and columns of progress. Does not know: the work in progress, files, tensors.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from typing import Protocol, TextIO

from cotswold.launch import rank_log
from cotswold.run.first_checkpoint import NOTHING_SAVED
from cotswold.ui.async_table import evaluator_lines, tables
from cotswold.ui.doing import bytes_in_words, kinds_of
from cotswold.ui.news import News
from cotswold.words import counted as counted_of

LINE_SECONDS = 5.0
_REFRESHES = 4
"""Refreshes per second; a table of replicas takes some milliseconds of a core that replicas also use."""
_BAR_WIDTH = 24
ENOUGH_STEPS = 3
ENOUGH_SECONDS = 30.0
"""Seconds after which fewer steps suffice for an estimate."""


def say(sentence: str) -> None:
    """Write a message to standard error, and to the log of a rank."""
    line = f"cotswold: {printable(sentence)}"
    rank_log.append(line)
    put(line, sys.stderr)


def printable(text: str) -> str:
    """Return a text in one line without control characters; it may contain names from other users."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in " ".join(text.split()))


def put(line: str, stream: TextIO) -> None:
    """Print a line; if the stream is closed (`| head`, a closed terminal), mute it instead of failing."""
    try:
        print(line, file=stream, flush=True)
    except OSError:
        mute(stream)


def mute(stream: TextIO) -> None:
    """Redirect a stream, including its buffer, to the null device."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, stream.fileno())
    finally:
        os.close(nowhere)


class Progress(Protocol):
    """Receives the progress of a job."""

    def __call__(self, done: int, total: int) -> None:
        """Report that ``done`` of ``total`` items are finished."""
        ...


@contextmanager
def counting(what: str, unit: str, stream: TextIO | None = None) -> Iterator[Progress]:
    """Show the progress of a job of known size: a bar, or a line every few seconds and at the end."""
    stream = stream or sys.stderr
    if not stream.isatty():
        yield _in_lines(what, unit, stream)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit + "{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(file=stream)) as bars:
        task = bars.add_task(what, total=None, rate="")
        started = time.monotonic()

        def advance(done: int, total: int) -> None:
            rate = done / max(time.monotonic() - started, 1e-9)
            bars.update(task, completed=done, total=total, rate=f", {rate:.0f}/s")

        yield advance


class Stages(Protocol):
    """Receives the current stage, and the number of samples done in it."""

    def __call__(self, doing: str, done: int) -> None:
        """Report the current stage."""
        ...


@contextmanager
def stages(stream: TextIO | None = None) -> Iterator[Stages]:
    """Show stages of unknown size: a changing line, or a line every few seconds if it is new."""
    stream = stream or sys.stderr
    if stream.isatty():
        from rich.console import Console

        with Console(file=stream).status("") as status:
            yield lambda doing, done: status.update(f"{doing} {done or ''}".rstrip())
        return
    last, said = time.monotonic(), ""

    def line(doing: str, done: int) -> None:
        nonlocal last, said
        text = f"{doing} {done or ''}".rstrip()
        if text != said and time.monotonic() - last >= LINE_SECONDS:
            last, said = time.monotonic(), text
            put(text, stream)

    yield line


def _in_lines(what: str, unit: str, stream: TextIO) -> Progress:
    started = last = time.monotonic()

    def advance(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= LINE_SECONDS or (done == total and now - started > 2):
            last = now
            rate = done / max(now - started, 1e-9)
            put(f"{what}: {done} of {total} {unit}, {rate:.0f}/s", stream)

    return advance


class TrainingDisplay:
    """Shows the events of a run as they arrive. Raises OSError if the stream is closed."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self._rich = _Bars(self.stream) if self.stream.isatty() else None
        self._last_line, self._last_validation = 0.0, -inf
        self._withheld: str | None = None
        """The last validation that was not shown."""
        self._left = Estimate()
        self._within = _Within()
        self._news = News()

    def __enter__(self) -> TrainingDisplay:
        if self._rich:
            self._rich.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._rich:
            try:
                self._rich.progress.stop()
            except OSError:
                mute(self.stream)

    def __call__(self, event: Mapping[str, object]) -> None:
        """Show one event."""
        for said in self._news.take(event):
            self._print(printable(said))
        if event["kind"] == "portions":
            self._portions(event)
            return
        if event["kind"] == "replicas":
            if self._rich:
                self._rich.replicas(event)
            return
        left = self._left(event) if event["kind"] == "step" else None
        line = describe(event, left)
        if event["kind"] == "step":
            if self._rich:
                self._rich.step(event, left)
                return
            done = event.get("at") == event.get("of")
            if not done and time.monotonic() - self._last_line < LINE_SECONDS:
                return
            self._last_line = time.monotonic()
        if event["kind"] == "validation":
            is_due = self._is_due()
            self._withheld = None if is_due else line
            if not is_due:
                return
        if line is None:
            return
        if event["kind"] == "end" and self._withheld is not None:  # the final result
            print(self._withheld, file=self.stream, flush=True)
            self._withheld = None
        self._print(line)

    def _print(self, line: str) -> None:
        if self._rich:
            self._rich.progress.console.print(line, highlight=False, markup=False)
        else:
            print(line, file=self.stream, flush=True)

    def _is_due(self) -> bool:
        """Return True if a validation is shown: always on a terminal, elsewhere one every few seconds."""
        now = time.monotonic()
        if self._rich is None and now - self._last_validation < LINE_SECONDS:
            return False
        self._last_validation = now
        return True

    def _portions(self, event: Mapping[str, object]) -> None:
        """Show the progress of an evaluation of the whole training set."""
        self._within.take(event)
        text = self._within.text(event)
        if self._rich:
            self._rich.evaluation(event, text)
        elif time.monotonic() - self._last_line >= LINE_SECONDS:
            self._last_line = time.monotonic()
            print(text, file=self.stream, flush=True)


class _Within:
    """Estimates the remaining time of an evaluation from the finished portions."""

    def __init__(self) -> None:
        self._evaluation: object = None
        self._began, self._first = 0.0, 0.0

    def take(self, event: Mapping[str, object]) -> None:
        """Record the start of an evaluation."""
        if event["evaluation"] != self._evaluation:
            self._evaluation = event["evaluation"]
            self._began, self._first = time.monotonic(), _number(event["portions"])

    def text(self, event: Mapping[str, object]) -> str:
        """Return portions, workers, current loss and remaining time."""
        done, of = _number(event["portions"]), _number(event["of"])
        seconds = time.monotonic() - self._began
        left = (of - done) * seconds / (done - self._first) if done > self._first else None
        workers, backups = int(_number(event.get("workers"))), int(_number(event.get("backups")))
        words = [
            f"evaluation {event['evaluation']}: {done:.0f} of {of:.0f} portions",
            *([f"{workers} workers"] if workers > 1 else []),
            *([f"{backups} backup copies"] if backups else []),
            *([] if event["value"] is None else [f"loss {_number(event['value']):.5g}"]),
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
        stack = event["stack"]
        if stack not in self.tasks:
            self.tasks[stack] = self.progress.add_task(phase_name(stack), total=None, figures="", left="")
        total = _number(event["of"]) if "of" in event else None
        said, at = figures(event), _number(event["at"])
        place = f"{phase_name(stack)}  {at:.0f}/{total or 0:.0f}  {time_left(left)}"
        is_narrow = len(place) + len(said) + _BAR_WIDTH + 4 > self.progress.console.width
        self.progress.below = said if is_narrow else ""
        self.progress.update(
            self.tasks[stack],
            completed=at,
            total=total,
            figures="" if is_narrow else said,
            left=time_left(left),
        )

    def replicas(self, event: Mapping[str, object]) -> None:
        """Show a row per replica and a row per server, above the bars."""
        shown = tables(event, self.progress.console.height)
        self.progress.above = [str(event["doing"]), *shown, *evaluator_lines(event)]
        self.progress.refresh()

    def evaluation(self, event: Mapping[str, object], text: str) -> None:
        """Show the progress of an evaluation, in a line below that of the iterations."""
        if "evaluation" not in self.tasks:
            self.tasks["evaluation"] = self.progress.add_task("evaluation", total=None, figures="", left="")
        self.progress.update(
            self.tasks["evaluation"],
            completed=_number(event["portions"]),
            total=_number(event["of"]),
            figures=text.partition(", ")[2],
        )


class Estimate:
    """Estimates the remaining seconds of a phase from the steps so far.

    The first interval of a phase is ignored, because kernels are compiled and caches filled in it.
    """

    def __init__(self) -> None:
        self._stack: object = None
        self._steps = self._seconds = self._at = 0.0

    def __call__(self, event: Mapping[str, object]) -> float | None:
        """Return the remaining seconds after a step event; None while too little is known."""
        if event["stack"] != self._stack:
            self._stack, self._steps, self._seconds = event["stack"], 0.0, 0.0
            self._at = _number(event.get("at"))
            return None
        at, self._at = self._at, _number(event.get("at"))
        # replicas count settled samples, everything else counts steps
        self._steps += self._at - at if "replicas" in event else _number(event.get("interval_steps", 1))
        self._seconds += _number(event["interval_seconds"])
        if "of" not in event or (self._steps < ENOUGH_STEPS and self._seconds < ENOUGH_SECONDS):
            return None
        left = _number(event["of"]) - _number(event["at"])
        return left * self._seconds / self._steps if self._steps > 0 else None


def time_left(seconds: float | None) -> str:
    """Return the remaining time as text; empty if unknown."""
    return "" if seconds is None else f"{_clock(seconds)} left"


def describe(event: Mapping[str, object], left: float | None = None) -> str | None:
    """Return one line for an event, or None; ``left`` is the remaining seconds after a step."""
    match event["kind"]:
        case "start":
            grid = "" if event.get("grid", "1x1") == "1x1" else f", {event['grid']} ranks"
            samples = event.get("pictures")  # missing for a data set without a length
            count = "" if samples is None else f"{samples} samples, "
            return f"{event['name']}: {event['strategy']}, {count}{event['parameters']:,} weights{grid}"
        case "stack":
            maps = f", {event['input']} -> {event['output']}" if "input" in event else ""
            again = ", trained further" if "prolongation" in event else ""
            return f"{phase_name(event['stack'])}: {event['parameters']:,} weights{maps}{again}"
        case "step":
            of = f"/{event['of']}" if "of" in event else ""  # the end of a phase may be open
            place = f"{phase_name(event['stack'])} {event['at']}{of}"
            return ", ".join([f"{place} {figures(event)}", *([] if left is None else [time_left(left)])])
        case "stack_end" if "why" in event:
            of = "samples" if "counted" in event else "iterations"
            return f"{phase_name(event['stack'])} ended after {event['step']} {of}: {event['why']}"
        case "stack_end" if "pushed" in event:
            return f"{phase_name(event['stack'])} ended; {_pushed(event)}{_without(event)}"
        case "metrics":
            return f"metrics for Prometheus: {event['url']}"
        case "prolonged":
            # replicas have no phases
            how = ", by phases with their own schedule" if "prolongation" in event else ""
            return f"extended to {_epochs(event['epochs'])} epochs{how}"
        case "validation":
            accuracy = f" accuracy {_number(event['accuracy']):.2%}" if "accuracy" in event else ""
            return f"{phase_name(event['stack'])} validation: loss {_number(event['loss']):.5g}{accuracy}"
        case "resumed":
            skipped = event.get("skipped")
            named = "; ".join(map(str, skipped)) if isinstance(skipped, list) else ""
            note = f" (skipped: {named})" if named else ""
            grid = "" if event.get("grid", "1x1") == "1x1" else f" on {event['grid']} ranks"
            kept = event.get("remembered")
            words = ", ".join(map(str, kept)) if isinstance(kept, list) else ""
            before = f" with {words}, as saved in the run" if words else ""
            is_step = event.get("counts", "steps") == "steps"
            place = f"step {event['step']}" if is_step else f"{event['step']:,} samples"
            return f"resumed after {place}{grid}{before}{note}"
        case "nothing_left":
            return f"the run is already complete: {event['why']}"
        case "warning":
            return f"warning: {event['warning']}"
        case "begun_anew":
            return NOTHING_SAVED
        case "observer_lost":
            return f"{event['observer']} failed and is disabled ({event['error']}); training continues"
        case "end":
            rate = _number(event["flops_per_second"])
            why = f" ({event['why']})" if event["status"] == "limited" and "why" in event else ""
            seconds = _clock(_number(event["training_seconds"]))
            return f"{event['status']}{why}: {event['samples']:,} samples in {seconds}, {_rate(rate)}"
        case _:
            return None


def _epochs(totals: object) -> str:
    """Return the epochs of every stack, or one number if they are equal."""
    numbers = totals if isinstance(totals, list | tuple) else [totals]
    return ", ".join(f"{_number(each):g}" for each in (numbers if len(set(numbers)) > 1 else numbers[:1]))


def figures(event: Mapping[str, object]) -> str:
    """Return loss and rates of a step event."""
    slopes = int(_number(event.get("slopes")))
    part = f" ({slopes} of them slopes on a fraction of the samples)" if slopes else ""
    asked = int(_number(event.get("evaluations"))) + slopes  # as evaluations are numbered in progress
    counted = f" {asked} evaluations{part}" if "evaluations" in event else ""
    workers = f" {event['workers']} workers" if _number(event.get("workers")) > 1 else ""
    noted = "".join(f", {name}: {event[name]}" for name in ("restart", "skipped", "failure") if name in event)
    rate = _rate(1e9 * _number(event["gflops"]))
    return (
        f"loss {_number(event['loss']):.5g}{_of_replicas(event)}{counted}{workers} "
        f"{_number(event['pictures_per_second']):.0f} samples/s {rate}{noted}"
    )


def _of_replicas(event: Mapping[str, object]) -> str:
    """Return the part of a step event about replicas; empty without replicas."""
    if "replicas" not in event:
        return ""
    accuracy = f" accuracy {_number(event['accuracy']):.2%}" if "accuracy" in event else ""
    waiting = _number(event.get("waiting_bytes"))
    queue = f" queue {bytes_in_words(waiting)}" if waiting else ""
    why = f" ({event['refused_why']})" if event.get("refused_why") else ""
    counts = {word: _number(event.get(word)) for word in ("refused", "torn")}
    missing = [f"{count:,.0f} samples {word}" for word, count in counts.items() if count]
    queue += f", {', '.join(missing)}{why}," if missing else ""
    return (
        f"{accuracy} epoch {int(_number(event.get('epoch'))) + 1} "
        f"{counted_of(int(_number(event['replicas'])), 'replica')} "
        f"staleness {_number(event.get('staleness')):.1f}{queue}"
    )


def _pushed(event: Mapping[str, object]) -> str:
    """Return the bytes that replicas pushed, by layer."""
    layers = event["pushed"] if isinstance(event["pushed"], Mapping) else {}
    parts = []
    for layer, kinds in layers.items():
        told = [f"{bytes_in_words(_number(count))} as {kinds_of(kind)}" for kind, count in kinds.items()]
        parts.append(f"{layer} {' and '.join(told)}")
    return f"replicas pushed {bytes_in_words(_number(event.get('pushed_bytes')))}: {', '.join(parts)}"


def _without(event: Mapping[str, object]) -> str:
    """Return the samples that were not counted; empty if all were."""
    found = [
        f"{_number(event[name]):,.0f} {word}"
        for name, word in (("refused", "refused"), ("torn", "torn"), ("left_out", "left out"))
        if event.get(name)
    ]
    counted = _number(event.get("counted"))
    return f"; {counted:,.0f} samples counted, {', '.join(found)}" if found else ""


def _rate(flops: float) -> str:
    """Return FLOPs per second as text, in MFLOP/s for small networks."""
    return f"{flops / 1e9:.1f} GFLOP/s" if flops >= 1e8 else f"{flops / 1e6:.1f} MFLOP/s"


def phase_name(stack: object) -> str:
    """Return the name of a phase; stacks are numbered from 1."""
    return (
        f"stack {stack + 1}" if isinstance(stack, int) else {"all": "all stacks"}.get(str(stack), str(stack))
    )


def _clock(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
