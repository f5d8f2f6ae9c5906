"""Samples that are settled permanently: every server has reported them, and its disk has the report.

Knows: numbers of coordinator states, the samples settled by the acknowledgements of each. Does not know:
samples, disks.
"""

from __future__ import annotations

from collections.abc import Sequence

from cotswold.wire import Ranges
from cotswold.wire.ranges import add, intersection


class LedgerDurability:
    """Durability of one coordinator's ledger."""

    def __init__(self, settled: Ranges) -> None:
        self.settled = settled
        """Positions whose samples are settled permanently."""
        self.state = 0
        """Newest coordinator state whose acknowledged reports are on all disks."""
        self._in_memory: dict[int, Ranges] = {}
        """Samples settled in memory by the acknowledgements of each coordinator state that is not on all
        disks."""

    @property
    def is_pending(self) -> bool:
        """True if servers have reported samples that are not on all of their disks."""
        return bool(self._in_memory)

    def retain(self, settled: Ranges) -> None:
        """Reduce the samples settled in memory to ``settled``, because a server lost its memory."""
        self._in_memory = {order: intersection(each, settled) for order, each in self._in_memory.items()}

    def record_acknowledgement(
        self, state: int, settled: Ranges, durable_states: Sequence[int | None]
    ) -> None:
        """Record that all servers have acknowledged a coordinator state. ``durable_states``: the newest
        state on each server's disk, None without a disk."""
        self._in_memory[state] = settled
        oldest = min((state if each is None else each for each in durable_states), default=state)
        for number in [each for each in self._in_memory if each <= oldest]:
            self.settled = add(self.settled, self._in_memory.pop(number))
            self.state = max(self.state, number)
