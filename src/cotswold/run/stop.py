"""A wish that training stop.

Knows: which signal asked, and whether a person at the keyboard did. Does not know: what stops.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Stop:
    """A wish to stop one run, set by a signal handler or another thread, and read between steps."""

    signal: int | None = None
    interrupted: bool = False
    """Whether Ctrl-C asked, or what stands for it, rather than the program."""
    limited: bool = False
    """Whether the run's time or money was spent, at which it stops by itself."""
