"""Request to stop training.

Knows: the signal, and whether a user pressed Ctrl-C. Does not know: what stops.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Stop:
    """A stop request for one run, set by a signal handler or another thread, and read between steps.

    Args:
        signal: number of the signal that requested the stop; None if no stop is requested.
        interrupted: True for Ctrl-C or its equivalent, False for a request of the program.
        limited: True if the run reached a limit of time or cost.
    """

    signal: int | None = None
    interrupted: bool = False
    """True for Ctrl-C or its equivalent, False for a request of the program."""
    is_limited: bool = False
    """True if the run reached a limit of time or cost."""
