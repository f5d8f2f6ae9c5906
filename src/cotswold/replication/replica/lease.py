"""The lease of a server: until when it may act as a primary.

Knows: when leases were requested, by the server's own clock. Does not know: its buckets.

A lease starts when the server requests it, not when the grant arrives. The controller starts it when it
receives the request, which is later. Clocks may run at different rates, so a server subtracts a margin.
"""

from __future__ import annotations

from dataclasses import dataclass, field

DRIFT = 0.05
"""Maximum relative difference of two clocks over a lease."""


@dataclass
class Lease:
    """The lease of one server."""

    end: float = float("-inf")
    _requests: dict[int, float] = field(default_factory=dict)
    """Request times by number, of requests without a reply."""
    _newest: int = 0

    def holds(self, now: float) -> bool:
        """True if the server may act."""
        return now < self.end

    def request(self, now: float) -> int:
        """Record a request at this time and return its number."""
        self._newest += 1
        self._requests[self._newest] = now
        self._requests.pop(self._newest - 64, None)
        return self._newest

    def grant(self, number: int, seconds: float) -> None:
        """Record a granted lease of this number and duration."""
        asked = self._requests.get(number)
        if asked is None:
            return
        self._requests = {each: when for each, when in self._requests.items() if each > number}
        self.end = max(self.end, asked + seconds * (1 - DRIFT))
