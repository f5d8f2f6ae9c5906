"""Judge of the clients' waiting times, in worlds with at most one trouble at a time.

Knows: unanswered updates with their times, the replies. Does not know: faults, causes of delays.

A client that stops repeating an update has given up or is dead, and no longer waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.chaos.invariants import BrokenError

from cotswold.wire import Applied, BucketEnvelope, Send, Update, UpdateRefused

_GIVEN_UP_SECONDS = 1.2
"""Seconds, longer than the interval at which an update is repeated."""


class WaitLimits:
    """Waiting times of all buckets."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        """``seconds``: longest time that a bucket may acknowledge nothing while an update waits."""
        self._seconds, self._clock = seconds, clock
        self.longest = 0.0
        """Longest time without an acknowledgement."""
        self._waiting: dict[str, dict[tuple[int, int], tuple[float, float]]] = {}
        """First and last time of sending of each update, by bucket, session and number."""
        self._acknowledged: dict[str, float] = {}
        """Time of each bucket's last acknowledgement."""

    def hear_client(self, sends: Sequence[Send]) -> None:
        """Handle messages of a client to buckets."""
        for send in sends:
            if isinstance(send.message, Update) and send.message.samples:
                waiting = self._waiting.setdefault(send.to, {})
                key, now = (send.message.session, send.message.number), self._clock()
                waiting[key] = waiting.get(key, (now, now))[0], now

    def hear(self, sends: Sequence[Send]) -> None:
        """Handle messages of a server."""
        for send in sends:
            match send.message:
                case BucketEnvelope(bucket, _, Applied(session, _, number)):
                    self._acknowledged[bucket] = self._clock()
                    self._waiting.get(bucket, {}).pop((session, number), None)
                case BucketEnvelope(bucket, _, UpdateRefused(session, _, number, _, False)):
                    self._waiting.get(bucket, {}).pop((session, number), None)
                case _:
                    pass

    def check(self) -> None:
        """Check the waiting times now. Raises BrokenError."""
        now = self._clock()
        for bucket, waiting in self._waiting.items():
            for key in [key for key, (_, last) in waiting.items() if last < now - _GIVEN_UP_SECONDS]:
                del waiting[key]
            if waiting:
                first = min(first for first, _ in waiting.values())
                seconds = now - max(first, self._acknowledged.get(bucket, 0.0))
                self.longest = max(self.longest, seconds)
                if seconds > self._seconds:
                    raise BrokenError(f"{bucket} acknowledges nothing for {seconds:.2f} s, and updates wait")
