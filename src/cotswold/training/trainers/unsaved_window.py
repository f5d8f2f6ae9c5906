"""Unsaved windows: how much a run could lose if all of its servers died, and a warning.

Knows: the servers' reports of their disks. Does not know: why a disk is late (events say it), what was lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from cotswold.wire.lifecycle import ServerCounters

_LATE = 2.0
"""The factor over the promised seconds at which a window is too long."""


class UnsavedWindow:
    """The unsaved windows of one run."""

    def __init__(self) -> None:
        self._longest = self._flush_seconds = 0.0

    def event_fields(self, counts: Sequence[ServerCounters]) -> dict[str, float]:
        """Return event fields; empty without disks.

        They are the bytes not yet on disk, the age of the oldest change among them, and the maximum age so
        far.
        """
        saved = [each.unsaved for each in counts if each.unsaved is not None]
        if not saved:
            return {}
        self._longest = max(self._longest, *(each.longest_seconds for each in saved))
        self._flush_seconds = saved[0].flush_seconds
        return {
            "dirty_bytes": sum(each.dirty_bytes for each in saved),
            "dirty_seconds": max(each.window_seconds for each in saved),
            "dirty_seconds_max": self._longest,
        }

    def warning(self, where: str) -> str | None:
        """Return a warning if disks were slower than promised; ``where`` names the source of the reasons."""
        if self._longest <= _LATE * self._flush_seconds:
            return None
        return (
            f"changes of servers were not on disk for up to {self._longest:.1f} s, but flush_seconds is "
            f"{self._flush_seconds:g}; see {where} for the reason"
        )
