"""A thread that does one thing after the other, and tells another thread, which listens, of what came of it.

Knows: jobs, their steps, a descriptor to listen to. Does not know: what is done.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

from cotswold.host import wake_pipe

Job = Callable[[], object]


class Working:
    """The thread; `close` ends it after the job that it does."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._told: deque[Job] = deque()
        self._woken, self._wake = wake_pipe()
        self._is_busy = False
        self._moved = time.monotonic()
        self._ended = 0
        self._thread = threading.Thread(target=self._run, name="computing", daemon=True)
        self._thread.start()

    @property
    def number(self) -> int:
        """The thread's, by which the system knows it."""
        return self._thread.native_id or 0

    @property
    def moved_at(self) -> float:
        """When its last step began, or ended, by the monotonic clock."""
        return self._moved

    @property
    def step(self) -> float | None:
        """When the step began that is computed, or the job that is none; None where nothing is done."""
        return self._moved if self._is_busy else None

    @property
    def ended(self) -> int:
        """How many steps have ended so far, as jobs told by `moved`."""
        return self._ended

    def moved(self) -> None:
        """A step has ended, and another may begin; for jobs, of which some are no steps."""
        self._ended, self._moved = self._ended + 1, time.monotonic()

    def fileno(self) -> int:
        """Can be read where `take` has something."""
        return self._woken

    def do(self, job: Job) -> None:
        """Do something, after what was asked for before; what it raises is raised by `take`."""
        self._jobs.put(job)

    def tell(self, what: Job) -> None:
        """Have the listening thread do something; for jobs."""
        self._told.append(what)
        with suppress(BlockingIOError):  # it has been woken often enough
            os.write(self._wake, b"!")

    def take(self) -> None:
        """Do what jobs told this thread, which listens."""
        with suppress(BlockingIOError):
            os.read(self._woken, 4096)
        while self._told:
            self._told.popleft()()

    def close(self) -> None:
        """End the thread."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._moved, self._is_busy = time.monotonic(), True
            try:
                job()
            except BaseException as error:
                self._is_busy = False
                self.tell(lambda error=error: _raised(error))  # type: ignore[misc]  # mypy and defaults
                return
            self._moved, self._is_busy = time.monotonic(), False
            job = None  # nor what it refers to, until the next


def _raised(error: BaseException) -> None:
    raise error
