"""Displays of progress: on a terminal, in a notebook, or none.

Knows: the displays that a process can use. Does not know: the work in progress.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from html import escape
from typing import Any, Protocol

from cotswold.ui.describe import describe
from cotswold.ui.event_summary import EventSummary
from cotswold.ui.terminal import Progress, Stages, progress_bar, show_stages, write_message, write_note
from cotswold.ui.training_display import Estimate, TrainingDisplay

Watch = Callable[[Mapping[str, object]], None]
"""Receives every event of a run."""
LOG = logging.getLogger("cotswold")
"""Logger of messages for the user if there is no display."""
_UPDATE_SECONDS = 0.25
_LINES_SHOWN = 40


class Display(Protocol):
    """Shows messages, counts and the events of a run."""

    def show(self, sentence: str) -> None:
        """Show a message to the user."""
        ...

    def note(self, sentence: str) -> None:
        """Show a message that only informs, and is neither a warning nor an error."""
        ...

    def count(self, what: str, unit: str) -> AbstractContextManager[Progress]:
        """Show the progress of a job of known size in a `with` block."""
        ...

    def stages(self) -> AbstractContextManager[Stages]:
        """Show a sequence of stages of unknown size in a `with` block."""
        ...

    def training(self) -> AbstractContextManager[Watch]:
        """Show the events of a run in a `with` block."""
        ...


def display_for(wanted: bool | None) -> Display:
    """Return the display for ``progress=``; None selects a terminal or notebook if there is one."""
    if wanted is False:
        return LoggingDisplay()
    if in_notebook():
        return Notebook()
    return Terminal() if wanted or sys.stderr.isatty() else LoggingDisplay()


def in_notebook() -> bool:
    """True if this process is the kernel of a notebook."""
    if "IPython" not in sys.modules:
        return False
    from rich.console import Console

    return Console().is_jupyter


class Terminal:
    """Progress bars if standard error is a terminal, otherwise a line every few seconds."""

    def show(self, sentence: str) -> None:
        """Write a line to standard error, and to the log of a rank."""
        write_message(sentence)

    def note(self, sentence: str) -> None:
        """Write a line to standard error, and to the log of a rank, unless output is quiet."""
        write_note(sentence)

    def count(self, what: str, unit: str) -> AbstractContextManager[Progress]:
        """Show a progress bar."""
        return progress_bar(what, unit)

    def stages(self) -> AbstractContextManager[Stages]:
        """Show a line that changes."""
        return show_stages()

    def training(self) -> AbstractContextManager[Watch]:
        """Show a line for each event and a bar for each phase."""
        return TrainingDisplay()


class LoggingDisplay:
    """No progress; messages go to the logger ``cotswold``."""

    def show(self, sentence: str) -> None:
        """Log a warning."""
        LOG.warning("%s", sentence)

    def note(self, sentence: str) -> None:
        """Log information."""
        LOG.info("%s", sentence)

    @contextmanager
    def count(self, what: str, unit: str) -> Iterator[Progress]:
        """Ignore counts."""
        yield lambda done, total: None

    @contextmanager
    def stages(self) -> Iterator[Stages]:
        """Ignore stages."""
        yield lambda doing, done: None

    @contextmanager
    def training(self) -> Iterator[Watch]:
        """Ignore events."""
        yield lambda event: None


class Notebook:
    """A cell output that is updated in place, without widgets."""

    def show(self, sentence: str) -> None:
        """Add a line to the cell's output."""
        _Output().show([f"<div>{escape(sentence)}</div>"], at_once=True)

    note = show

    @contextmanager
    def count(self, what: str, unit: str) -> Iterator[Progress]:
        """Show a bar after the first count."""
        output = _Output()
        last: list[str] = []

        def advance(done: int, total: int) -> None:
            last[:] = [_bar(f"{what}: {done} of {total} {unit}", done, total)]
            output.show(last)

        yield advance
        if last:
            output.show(last, at_once=True)

    @contextmanager
    def stages(self) -> Iterator[Stages]:
        """Show a line that changes."""
        output = _Output()
        yield lambda doing, done: output.show([f"<div>{escape(doing)} {done or ''}</div>"])

    @contextmanager
    def training(self) -> Iterator[Watch]:
        """Show a line for each event and a bar for each phase."""
        output, lines = _Output(), list[str]()
        bars: dict[object, str] = {}
        left, news = Estimate(), EventSummary()

        def show(event: Mapping[str, object]) -> None:
            lines.extend(f"<div>{escape(line)}</div>" for line in news.take(event))
            if event["kind"] == "step":
                text = describe(event, left(event)) or ""
                bars[event["phase"]] = _bar(text, event["phase_step"], event.get("phase_steps"))
            elif (line := describe(event)) is not None:
                lines.append(f"<div>{escape(line)}</div>")
            output.show([*lines[-_LINES_SHOWN:], *bars.values()], at_once=event["kind"] == "end")

        yield show


class _Output:
    """An output of a cell, updated at most a few times per second."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._shown_at = -_UPDATE_SECONDS

    def show(self, blocks: list[str], *, at_once: bool = False) -> None:
        """Show blocks of HTML in the output."""
        now = time.monotonic()
        if not at_once and now - self._shown_at < _UPDATE_SECONDS:
            return
        self._shown_at = now
        from IPython.display import HTML, display

        page = HTML(f'<div style="font-family: monospace">{"".join(blocks)}</div>')
        if self._handle is None:
            self._handle = display(page, display_id=True)
        else:
            self._handle.update(page)


def _bar(text: str, done: object, total: object) -> str:
    if total is None:  # an unknown total
        return f"<div><progress></progress> {escape(text)}</div>"
    return f'<div><progress value="{done}" max="{total}"></progress> {escape(text)}</div>'
