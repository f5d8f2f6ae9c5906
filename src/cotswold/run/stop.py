"""A wish that training stop.

Knows: which signal, or whoever calls it, asked. Does not know: what stops.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Stop:
    """A wish to stop, set by a signal handler or another thread, and read between steps."""

    signal: int | None = None
