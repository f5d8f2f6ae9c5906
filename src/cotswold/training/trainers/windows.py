"""How much a run could have lost if all of its servers had died: the longest window, and a warning.

Knows: what servers say of their disks. Does not know: why a disk is late (events say it), what was lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from cotswold.wire.lifecycle import Counts

_LATE = 2.0
"""With so many times what is promised a window is too long."""


class Windows:
    """Those of one run."""

    def __init__(self) -> None:
        self._longest = self._promised = 0.0

    def said(self, counts: Sequence[Counts]) -> dict[str, float]:
        """What an event says: bytes that are on no disk, how old the oldest change among them is, and the
        oldest that ever was; nothing where there are no disks."""
        saved = [each.unsaved for each in counts if each.unsaved is not None]
        if not saved:
            return {}
        self._longest = max(self._longest, *(each.longest_seconds for each in saved))
        self._promised = saved[0].flush_seconds
        return {
            "dirty_bytes": sum(each.dirty_bytes for each in saved),
            "window_seconds": max(each.window_seconds for each in saved),
            "longest_window_seconds": self._longest,
        }

    def warning(self, where: str) -> str | None:
        """Where the disks were slower than what is promised; ``where``: what says why."""
        if self._longest <= _LATE * self._promised:
            return None
        return (
            f"changes of servers were on no disk for up to {self._longest:.1f} s, and flush_seconds is "
            f"{self._promised:g}; {where} says why"
        )
