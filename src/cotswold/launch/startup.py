"""Limit how long a rank waits before its heartbeat begins, and report why it gives up.

Knows: threads, the clock, errors. Does not know: stores, beats.

If the process that hosts the store is stopped, a call of the store may hang regardless of the store's
timeout. Each call before the heartbeat begins therefore runs in a thread, and the caller waits for it no
longer than the timeout.
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
class StartupDeadline:
    """Time limits of a starting rank, and the names that its error messages use.

    ``own_name`` is this rank, ``master`` the address of rank 0. A call may take ``timeout_seconds``. All
    ranks must arrive within ``arrival_seconds`` of the start, which is at ``deadline`` on the monotonic
    clock.
    """

    own_name: str
    master: str
    timeout_seconds: float
    arrival_seconds: float
    deadline: float

    def pause_before_retry(self, why: str) -> None:
        """Sleep for a moment before the next attempt; RankError with the reason after the deadline."""
        if time.monotonic() > self.deadline:
            raise RankError(
                f"{self.own_name} has waited {self.arrival_seconds:.3g} s for rank 0 at {self.master}, "
                f"{why}; check whether rank 0 started, and whether a firewall is between"
            )
        time.sleep(0.05)

    def call_with_timeout(self, call: Callable[[], T], seconds: float | None = None) -> T:
        """Return the result of a call of the store; RankError after ``seconds`` (default: the timeout)."""
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
            f"{self.own_name} has lost rank 0 at {self.master} ({' '.join(reason.split())[:200]}); "
            "check why rank 0 ended"
        ) from (errors[0] if errors else None)
