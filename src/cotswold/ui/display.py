"""Displays of progress: on the terminal, in a notebook, or nowhere.

Knows: the displays that a process has, the abilities of each. Does not know: what is computed.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from html import escape
from typing import Any, Protocol

from cotswold.ui import progress
from cotswold.ui.news import News
from cotswold.ui.progress import Progress, Stages, TrainingDisplay

Watch = Callable[[Mapping[str, object]], None]
"""Receives every event of a run."""
LOG = logging.getLogger("cotswold")
"""Logger for sentences that no display shows."""
_UPDATE_SECONDS = 0.25
_LINES_SHOWN = 40


class Display(Protocol):
    """Shows sentences, counts and the events of a run."""

    def say(self, sentence: str) -> None:
        """Show a sentence to the user."""
        ...

    def counting(self, what: str, unit: str) -> AbstractContextManager[Progress]:
        """Show the progress of a job of known size, for a `with` block."""
        ...

    def stages(self) -> AbstractContextManager[Stages]:
        """Show a sequence of stages of unknown size, for a `with` block."""
        ...

    def training(self) -> AbstractContextManager[Watch]:
        """Show the events of a run, for a `with` block."""
        ...


def display_for(wanted: bool | None) -> Display:
    """Return the display for the argument ``progress=``; None chooses by the environment: a notebook or a
    terminal, if there is one."""
    if wanted is False:
        return Quiet()
    if in_notebook():
        return Notebook()
    return Terminal() if wanted or sys.stderr.isatty() else Quiet()


def in_notebook() -> bool:
    """True if this process is the kernel of a notebook."""
    if "IPython" not in sys.modules:
        return False
    from rich.console import Console

    return Console().is_jupyter


class Terminal:
    """Bars if standard error is a terminal, otherwise a line every few seconds."""

    def say(self, sentence: str) -> None:
        """Write a line to standard error, and to the log of a rank."""
        progress.say(sentence)

    def counting(self, what: str, unit: str) -> AbstractContextManager[Progress]:
        """Show a bar."""
        return progress.counting(what, unit)

    def stages(self) -> AbstractContextManager[Stages]:
        """Show a line that changes."""
        return progress.stages()

    def training(self) -> AbstractContextManager[Watch]:
        """Show a line for each event, a bar for each phase."""
        return TrainingDisplay()


class Quiet:
    """No progress; sentences go to the logger ``cotswold``."""

    def say(self, sentence: str) -> None:
        """Log a warning."""
        LOG.warning("%s", sentence)

    @contextmanager
    def counting(self, what: str, unit: str) -> Iterator[Progress]:
        """Accept counts, and show none."""
        yield lambda done, total: None

    @contextmanager
    def stages(self) -> Iterator[Stages]:
        """Accept stages, and show none."""
        yield lambda doing, done: None

    @contextmanager
    def training(self) -> Iterator[Watch]:
        """Accept events, and show none."""
        yield lambda event: None


class Notebook:
    """A cell's output that changes in place; needs no widgets."""

    def say(self, sentence: str) -> None:
        """Show a line in the cell's output."""
        _Output().show([f"<div>{escape(sentence)}</div>"], at_once=True)

    @contextmanager
    def counting(self, what: str, unit: str) -> Iterator[Progress]:
        """Show a bar, once something has been counted."""
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
        """Show a line for each event, a bar for each phase."""
        output, lines = _Output(), list[str]()
        bars: dict[object, str] = {}
        left, news = progress.Estimate(), News()

        def show(event: Mapping[str, object]) -> None:
            lines.extend(f"<div>{escape(line)}</div>" for line in news.take(event))
            if event["kind"] == "step":
                text = progress.describe(event, left(event)) or ""
                bars[event["stack"]] = _bar(text, event["at"], event.get("of"))
            elif (line := progress.describe(event)) is not None:
                lines.append(f"<div>{escape(line)}</div>")
            output.show([*lines[-_LINES_SHOWN:], *bars.values()], at_once=event["kind"] == "end")

        yield show


class _Output:
    """One output of a cell, rewritten several times a second at most."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._shown_at = -_UPDATE_SECONDS

    def show(self, blocks: list[str], *, at_once: bool = False) -> None:
        """Show these blocks of HTML."""
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
    if total is None:  # an open end
        return f"<div><progress></progress> {escape(text)}</div>"
    return f'<div><progress value="{done}" max="{total}"></progress> {escape(text)}</div>'
