"""An event loop in virtual time: it executes the next scheduled action without waiting.

Knows: times, actions, their order. Does not know: the actors.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class VirtualTimeLoop:
    """Actions at their times; simultaneous actions run in the order in which they were scheduled."""

    now: float = 0.0
    events: int = 0
    """Number of executed actions."""
    _queue: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _scheduled: int = 0

    def schedule(self, seconds: float, action: Callable[[], None]) -> None:
        """Schedule an action in ``seconds``."""
        assert seconds >= 0, f"an action {seconds} s from now"
        self._scheduled += 1
        heapq.heappush(self._queue, (self.now + seconds, self._scheduled, action))

    def run(self, until: Callable[[], bool], seconds: float, events: int = 1_000_000) -> bool:
        """Run until ``until()`` holds; False if it does not within ``seconds`` or ``events`` actions."""
        last_time, last_event = self.now + seconds, self.events + events
        while not until():
            if not self._queue or self._queue[0][0] > last_time or self.events >= last_event:
                return False
            self.now, _, action = heapq.heappop(self._queue)
            self.events += 1
            action()
        return True
