"""Events that a state machine reports, for people and logs.

Knows: names and fields. Does not know: where events are written.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """An event for the log."""

    kind: str
    """``joined``, ``lost``, ``left``, ``refused``, ``failed``, ``backup_task``, ``portions_refused``,
    ``point_mismatch``, ``reduction``, ``aborted``, ``deadline``, ``epoch``, ``recovered``,
    ``samples_lost``."""
    name: str
    """Name of the worker or replica, or of the recovered server."""
    sentence: str = ""
    portions: tuple[int, ...] = ()
    places: tuple[tuple[int, int], ...] = ()
    """Positions of samples, as ranges."""
