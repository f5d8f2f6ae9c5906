"""How long buckets keep clients waiting: judged where no more than one thing goes wrong at a time.

Knows: updates that are not answered, since when, the answers. Does not know: what befalls whom, why it takes
so long.

A client that says an update no more has given it up, or is dead: it waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.chaos.invariants import BrokenError

from cotswold.wire import Applied, BucketEnvelope, Send, Update, UpdateRefused

_GIVEN_UP_SECONDS = 1.2
"""More than an update takes until it is said again."""


class WaitLimits:
    """Those of all buckets."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        """``seconds``: for so long at most may a bucket acknowledge nothing while an update waits."""
        self._seconds, self._clock = seconds, clock
        self.longest = 0.0
        """For which one acknowledged nothing."""
        self._waiting: dict[str, dict[tuple[int, int], tuple[float, float]]] = {}
        """By bucket, and by session and number: when updates were said first, and last."""
        self._acknowledged: dict[str, float] = {}
        """When each bucket acknowledged anything last."""

    def hear_client(self, sends: Sequence[Send]) -> None:
        """A client says these to buckets."""
        for send in sends:
            if isinstance(send.message, Update) and send.message.samples:
                waiting = self._waiting.setdefault(send.to, {})
                key, now = (send.message.session, send.message.number), self._clock()
                waiting[key] = waiting.get(key, (now, now))[0], now

    def hear(self, sends: Sequence[Send]) -> None:
        """A server says these."""
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
        """Time has passed. Raises BrokenError."""
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
