"""How long a rank waits before its heartbeat begins, and what it says when it gives up.

Knows: threads, the clock, errors. Does not know: stores, beats.

A call of a store may hang for ever when the process that keeps it is stopped, whatever the store's timeout
says; so each call before the heartbeat begins is made in a thread that nobody waits for longer than the
timeout.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cotswold.errors import RankError

T = TypeVar("T")


@dataclass(frozen=True)
class Waiting:
    """The limits of the rank that sentences call ``me``, which looks for the others at ``master``.

    A call may take ``timeout_seconds``; all are to be there ``arrival_seconds`` after the start, at the
    ``deadline`` of the monotonic clock.
    """

    me: str
    master: str
    timeout_seconds: float
    arrival_seconds: float
    deadline: float

    def again(self, why: str) -> None:
        """Sleep for a moment; RankError, with the reason, once the time of arrival is over."""
        if time.monotonic() > self.deadline:
            raise RankError(
                f"{self.me} has waited {self.arrival_seconds:.3g} s for rank 0 at {self.master}, "
                f"{why}; see why it did not start, or whether a firewall is between"
            )
        time.sleep(0.05)

    def within(self, call: Callable[[], T], seconds: float | None = None) -> T:
        """The result of a call of the store, if it comes within the timeout, or so many seconds."""
        seconds = self.timeout_seconds if seconds is None else seconds
        results: list[T] = []
        errors: list[Exception] = []

        def run() -> None:
            try:
                results.append(call())
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=run, name="cotswold rendezvous", daemon=True)
        thread.start()
        thread.join(seconds)
        if results:
            return results[0]
        reason = f"{errors[0]}" if errors else f"no answer for {seconds:.3g} s"
        raise RankError(
            f"{self.me} has lost rank 0 at {self.master} ({' '.join(reason.split())[:200]}); "
            "see what became of it"
        ) from (errors[0] if errors else None)
