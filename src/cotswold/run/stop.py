"""Stop requests, and the time before which a stopped run has saved nothing.

Knows: the signal, whether a user pressed Ctrl-C, the time of the first checkpoint. Does not know: what stops,
what is saved.
"""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass

FIRST_SAVE_SECONDS = 15.0
"""Seconds of training until the first checkpoint, unless checkpoints are more frequent."""
NOTHING_SAVED = (
    f"nothing was saved yet, as in the first {FIRST_SAVE_SECONDS:g} s of training; the run starts again"
)


@dataclass
class Stop:
    """A stop request for one run, set by a signal handler or another thread, and read between steps.

    Args:
        signal: number of the signal that requested the stop; None if no stop is requested.
        interrupted: True for Ctrl-C or its equivalent, False for a request of the program.
        is_limited: True if the run reached a limit of time or cost.
    """

    signal: int | None = None
    interrupted: bool = False
    """True for Ctrl-C or its equivalent, False for a request of the program."""
    is_limited: bool = False
    """True if the run reached a limit of time or cost."""

    def request(self) -> None:
        """Ask the run to finish its step, save, and return; any thread may call this, any number of times."""
        if self.signal is None:
            self.signal = signals.SIGTERM

    def interrupt(self) -> bool:
        """Ask the run to stop as Ctrl-C does; returns False if a stop was requested before."""
        if self.signal is not None:
            return False
        self.signal, self.interrupted = signals.SIGINT, True
        return True
