"""Signals to the parent of local ranks, and the signals that it passes on.

Knows: signals, their times, what the shell's Ctrl-C, Ctrl-Z and hangup send. Does not know: ranks.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that request to save and stop; a second one requests to leave at once."""
ECHO_SECONDS = 0.3
"""Seconds within which a repeated signal counts as the same request.

`timeout` and batch systems send a signal to a process and to its group.
"""


@dataclass
class SignalRequests:
    """Requests received so far."""

    received: list[tuple[int, float]] = field(default_factory=list)
    """Signals that request a stop, each with its time in seconds."""
    suspended: bool = False
    """True while a Ctrl-Z is pending."""

    @property
    def first(self) -> int | None:
        """The first signal received; it determines the exit code."""
        return self.received[0][0] if self.received else None

    @contextmanager
    def handle_signals(self) -> Iterator[SignalRequests]:
        """Handle signals inside a `with` block; signals ignored by `nohup` or a script's `&` stay ignored."""
        before = {number: signal.getsignal(number) for number in (*STOP_SIGNALS, signal.SIGTSTP)}
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._receive)
        if before[signal.SIGHUP] is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._receive)
        if before[signal.SIGTSTP] is not signal.SIG_IGN:
            signal.signal(signal.SIGTSTP, self._suspend)
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _receive(self, number: int, _: object) -> None:
        self.received.append((number, time.monotonic()))

    def _suspend(self, _number: int, _frame: object) -> None:
        self.suspended = True


def signals_to_forward(received: Sequence[tuple[int, float]]) -> list[int]:
    """Return the signals that ranks receive for those that came: one to save and stop, a second to leave.

    The second differs from the first, so that no rank takes it for an echo. A hangup is passed on as SIGTERM,
    and never counts as the second signal: closing a terminal sends it automatically.
    """
    if not received:
        return []
    (first, at), *later = received
    gentle = signal.SIGTERM if first == signal.SIGHUP else first
    urgent = [
        (number, when)
        for number, when in later
        if number != signal.SIGHUP and not (number == first and when - at < ECHO_SECONDS)
    ]
    if not urgent:
        return [gentle]
    return [gentle, signal.SIGINT if gentle == signal.SIGTERM else signal.SIGTERM]
