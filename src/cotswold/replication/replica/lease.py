"""Until when a server may act as the primary of what it was given.

Knows: when leases were asked for, by the server's own clock. Does not know: of which buckets it is primary.

A lease counts from when it was asked for, not from when it was had: the controller that gives it counts from
when it was asked, which is later. Clocks may run at different rates, so a server counts a little less.
"""

from __future__ import annotations

from dataclasses import dataclass, field

DRIFT = 0.05
"""By which share of a lease two clocks may differ over it."""


@dataclass
class Lease:
    """That of one server."""

    until: float = float("-inf")
    _asked: dict[int, float] = field(default_factory=dict)
    """When each was asked for, by number; those that are not answered."""
    _newest: int = 0

    def holds(self, now: float) -> bool:
        """Whether the server may act."""
        return now < self.until

    def ask(self, now: float) -> int:
        """The number of the next, which is asked for now."""
        self._newest += 1
        self._asked[self._newest] = now
        self._asked.pop(self._newest - 64, None)
        return self._newest

    def given(self, number: int, seconds: float) -> None:
        """The lease of this number was given for so long."""
        asked = self._asked.get(number)
        if asked is None:
            return
        self._asked = {each: when for each, when in self._asked.items() if each > number}
        self.until = max(self.until, asked + seconds * (1 - DRIFT))
