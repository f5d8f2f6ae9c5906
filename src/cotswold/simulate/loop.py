"""An event loop whose time is a number: what is due next happens, and nobody waits.

Knows: times, actions, their order. Does not know: who acts.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Loop:
    """Actions at their times; those of one time in the order in which they were asked for."""

    now: float = 0.0
    events: int = 0
    """How many actions there were."""
    _queue: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _asked: int = 0

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Act in so many seconds."""
        assert seconds >= 0, f"an action {seconds} s from now"
        self._asked += 1
        heapq.heappush(self._queue, (self.now + seconds, self._asked, action))

    def run(self, until: Callable[[], bool], seconds: float, events: int = 1_000_000) -> bool:
        """Go on until that is so; False where it is not after so many seconds or events from now."""
        last_time, last_event = self.now + seconds, self.events + events
        while not until():
            if not self._queue or self._queue[0][0] > last_time or self.events >= last_event:
                return False
            self.now, _, action = heapq.heappop(self._queue)
            self.events += 1
            action()
        return True
