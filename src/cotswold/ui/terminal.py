"""Messages and progress bars on the terminal: bars if there is one, otherwise lines.

Knows: streams, texts of progress, the wanted amount of output. Does not know: the work in progress, events.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, TextIO

from cotswold.launch import rank_log

LINE_SECONDS = 5.0
"""Seconds between lines without a terminal."""
_VERBOSE_LINE_SECONDS = 1.0
VERBOSITY = "COTSWOLD_VERBOSITY"
"""Environment variable that a command sets for itself and its processes: ``quiet`` or ``verbose``."""
QUIET, VERBOSE = "quiet", "verbose"


def is_quiet(environ: Mapping[str, str] = os.environ) -> bool:
    """True if only results, warnings and errors are wanted."""
    return environ.get(VERBOSITY) == QUIET


def is_verbose(environ: Mapping[str, str] = os.environ) -> bool:
    """True if more progress and log output is wanted."""
    return environ.get(VERBOSITY) == VERBOSE


def line_seconds() -> float:
    """Return the seconds between lines of progress without a terminal."""
    return _VERBOSE_LINE_SECONDS if is_verbose() else LINE_SECONDS


def write_note(sentence: str) -> None:
    """Write a message that only informs, and is neither a warning nor an error, unless output is quiet."""
    if not is_quiet():
        write_message(sentence)


def write_message(sentence: str) -> None:
    """Write a warning or an error to standard error, and to the log of a rank."""
    line = f"cotswold: {printable(sentence)}"
    rank_log.append(line)
    put(line, sys.stderr)


def print_result(sentence: str) -> None:
    """Print a sentence that is the result of a command to standard output, also if output is quiet."""
    put(printable(sentence), sys.stdout)


def printable(text: str) -> str:
    """Return a text in one line without control characters; it may contain names from other users."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in " ".join(text.split()))


def put(line: str, stream: TextIO) -> None:
    """Print a line; if the stream is closed (`| head`, a closed terminal), mute it instead of failing."""
    try:
        print(line, file=stream, flush=True)
    except OSError:
        redirect_to_null(stream)


def redirect_to_null(stream: TextIO) -> None:
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
def progress_bar(what: str, unit: str, stream: TextIO | None = None) -> Iterator[Progress]:
    """Show the progress of a job of known size: a bar, or a line every few seconds and at the end."""
    stream = stream or sys.stderr
    if is_quiet():
        yield lambda done, total: None
        return
    if not stream.isatty():
        yield _line_progress(what, unit, stream)
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
def show_stages(stream: TextIO | None = None) -> Iterator[Stages]:
    """Show stages of unknown size: a changing line, or a line every few seconds if it is new."""
    stream = stream or sys.stderr
    if is_quiet():
        yield lambda doing, done: None
        return
    if stream.isatty():
        from rich.console import Console

        with Console(file=stream).status("") as status:
            yield lambda doing, done: status.update(f"{doing} {done or ''}".rstrip())
        return
    last, said = time.monotonic(), ""

    def line(doing: str, done: int) -> None:
        nonlocal last, said
        text = f"{doing} {done or ''}".rstrip()
        if text != said and time.monotonic() - last >= line_seconds():
            last, said = time.monotonic(), text
            put(text, stream)

    yield line


def _line_progress(what: str, unit: str, stream: TextIO) -> Progress:
    started = last = time.monotonic()

    def advance(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= line_seconds() or (done == total and now - started > 2):
            last = now
            rate = done / max(now - started, 1e-9)
            put(f"{what}: {done} of {total} {unit}, {rate:.0f}/s", stream)

    return advance
