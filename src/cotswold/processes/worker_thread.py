"""A thread that runs jobs one after the other, and reports their results to a listening thread.

Knows: jobs, their steps, a descriptor for the listener. Does not know: what the jobs do.
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


class WorkerThread:
    """The thread; `close` ends it after its current job."""

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
        """The operating system's number of the thread."""
        return self._thread.native_id or 0

    @property
    def moved_at(self) -> float:
        """Monotonic time at which its last step began or ended."""
        return self._moved

    @property
    def step(self) -> float | None:
        """Time at which the current step, or a job without steps, began; None while the thread is idle."""
        return self._moved if self._is_busy else None

    @property
    def ended(self) -> int:
        """Number of steps that have ended, as jobs reported by `step_finished`."""
        return self._ended

    def step_finished(self) -> None:
        """Report that a step has ended and another may begin; called by jobs."""
        self._ended, self._moved = self._ended + 1, time.monotonic()

    def fileno(self) -> int:
        """Becomes readable when `run_callbacks` has something to run."""
        return self._woken

    def submit(self, job: Job) -> None:
        """Queue a job after earlier ones; `run_callbacks` raises its exception."""
        self._jobs.put(job)

    def call_in_main(self, what: Job) -> None:
        """Have the listening thread call a function; called by jobs."""
        self._told.append(what)
        with suppress(BlockingIOError):  # the pipe is full: enough wake-ups are pending
            os.write(self._wake, b"!")

    def run_callbacks(self) -> None:
        """Run the calls that jobs queued for the listening thread."""
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
                self.call_in_main(lambda error=error: _raised(error))  # type: ignore[misc]  # mypy and defaults
                return
            self._moved, self._is_busy = time.monotonic(), False
            job = None  # drop the references of the finished job


def _raised(error: BaseException) -> None:
    raise error
