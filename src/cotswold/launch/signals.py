"""What signals ask of the parent of local ranks.

Knows: signals, when they came, what the shell's Ctrl-C, Ctrl-Z and hanging up send. Does not know: ranks.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask to save and stop; any second one asks to leave at once."""
ECHO_SECONDS = 0.3
"""The same signal again within a moment is one wish: `timeout` and batch systems send it to a process and to
its group."""


@dataclass
class Asked:
    """What has been asked so far."""

    heard: list[tuple[int, float]] = field(default_factory=list)
    """Signals that ask to stop, and when each came, in seconds."""
    suspended: bool = False
    """Whether a Ctrl-Z waits to be obeyed."""

    @property
    def first(self) -> int | None:
        """The signal that came first; the exit code tells it."""
        return self.heard[0][0] if self.heard else None

    @contextmanager
    def listening(self) -> Iterator[Asked]:
        """Listen to signals inside a `with` block; what `nohup` or a script's `&` ignores stays ignored."""
        before = {number: signal.getsignal(number) for number in (*ASKING, signal.SIGTSTP)}
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._hear)
        if before[signal.SIGHUP] is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._hear)
        if before[signal.SIGTSTP] is not signal.SIG_IGN:
            signal.signal(signal.SIGTSTP, self._suspend)
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, _: object) -> None:
        self.heard.append((number, time.monotonic()))

    def _suspend(self, _number: int, _frame: object) -> None:
        self.suspended = True


def passed_on(heard: Sequence[tuple[int, float]]) -> list[int]:
    """The signals that ranks are to get for those that came: one to save and stop, a second to leave.

    The second is another than the first, so that no rank takes it for an echo. Hanging up asks them for what
    SIGTERM asks, and is never the second: it comes by itself when a terminal closes.
    """
    if not heard:
        return []
    (first, at), *later = heard
    gentle = signal.SIGTERM if first == signal.SIGHUP else first
    hurried = [
        (number, when)
        for number, when in later
        if number != signal.SIGHUP and not (number == first and when - at < ECHO_SECONDS)
    ]
    if not hurried:
        return [gentle]
    return [gentle, signal.SIGINT if gentle == signal.SIGTERM else signal.SIGTERM]
