"""What is settled for ever: of which every server has said so, and its disk has that.

Knows: numbers of orders, what was settled with the answers to each. Does not know: samples, disks.
"""

from __future__ import annotations

from collections.abc import Sequence

from cotswold.wire import Ranges
from cotswold.wire.ranges import added, common


class Saving:
    """That of one coordinator."""

    def __init__(self, settled: Ranges) -> None:
        self.settled = settled
        """What became of the samples at these places is known for ever."""
        self.order = 0
        """The newest of which all disks have what was said in answer."""
        self._with: dict[int, Ranges] = {}
        """What was settled in memories with the answers to each order that not all disks have."""

    @property
    def is_pending(self) -> bool:
        """Whether servers have said something that not all of their disks have."""
        return bool(self._with)

    def lost(self, settled: Ranges) -> None:
        """A server has lost what was not on its disk: no more than this is settled in memories either."""
        self._with = {order: common(each, settled) for order, each in self._with.items()}

    def answered(self, order: int, settled: Ranges, saved: Sequence[int | None]) -> None:
        """All servers have answered an order; ``saved``: the newest order that the disks of each have, None
        where there are no disks."""
        self._with[order] = settled
        oldest = min((order if each is None else each for each in saved), default=order)
        for number in [each for each in self._with if each <= oldest]:
            self.settled = added(self.settled, self._with.pop(number))
            self.order = max(self.order, number)
