"""Samples that are settled permanently: every server has reported them, and its disk has the report.

Knows: numbers of coordinator states, the samples settled by the acknowledgements of each. Does not know:
samples, disks.
"""

from __future__ import annotations

from collections.abc import Sequence

from cotswold.wire import Ranges
from cotswold.wire.ranges import add, intersection


class Durability:
    """Durability of one coordinator's ledger."""

    def __init__(self, settled: Ranges) -> None:
        self.settled = settled
        """Positions whose samples are settled permanently."""
        self.order = 0
        """Newest coordinator state whose acknowledged reports are on all disks."""
        self._with: dict[int, Ranges] = {}
        """Samples settled in memory by the acknowledgements of each coordinator state that is not on all
        disks."""

    @property
    def is_pending(self) -> bool:
        """True if servers have reported samples that are not on all of their disks."""
        return bool(self._with)

    def lost(self, settled: Ranges) -> None:
        """Reduce the samples settled in memory to ``settled``, because a server lost its memory."""
        self._with = {order: intersection(each, settled) for order, each in self._with.items()}

    def answered(self, order: int, settled: Ranges, saved: Sequence[int | None]) -> None:
        """Record that all servers have acknowledged a coordinator state. ``saved``: the newest state on each
        server's disk, None without a disk."""
        self._with[order] = settled
        oldest = min((order if each is None else each for each in saved), default=order)
        for number in [each for each in self._with if each <= oldest]:
            self.settled = add(self.settled, self._with.pop(number))
            self.order = max(self.order, number)
