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
        self._callbacks: deque[Job] = deque()
        self._wake_reader, self._wake_writer = wake_pipe()
        self._is_busy = False
        self._progress_at = time.monotonic()
        self._steps_ended = 0
        self._thread = threading.Thread(target=self._run, name="computing", daemon=True)
        self._thread.start()

    @property
    def number(self) -> int:
        """The operating system's number of the thread."""
        return self._thread.native_id or 0

    @property
    def progress_at(self) -> float:
        """Monotonic time at which its last step began or ended."""
        return self._progress_at

    @property
    def step(self) -> float | None:
        """Time at which the current step, or a job without steps, began; None while the thread is idle."""
        return self._progress_at if self._is_busy else None

    @property
    def steps_ended(self) -> int:
        """Number of steps that have ended, as jobs reported by `step_finished`."""
        return self._steps_ended

    def step_finished(self) -> None:
        """Report that a step has ended and another may begin; called by jobs."""
        self._steps_ended, self._progress_at = self._steps_ended + 1, time.monotonic()

    def fileno(self) -> int:
        """Becomes readable when `run_callbacks` has something to run."""
        return self._wake_reader

    def submit(self, job: Job) -> None:
        """Queue a job after earlier ones; `run_callbacks` raises its exception."""
        self._jobs.put(job)

    def call_in_main(self, callback: Job) -> None:
        """Have the listening thread call a function; called by jobs."""
        self._callbacks.append(callback)
        with suppress(BlockingIOError):  # the pipe is full: enough wake-ups are pending
            os.write(self._wake_writer, b"!")

    def run_callbacks(self) -> None:
        """Run the calls that jobs queued for the listening thread."""
        with suppress(BlockingIOError):
            os.read(self._wake_reader, 4096)
        while self._callbacks:
            self._callbacks.popleft()()

    def close(self) -> None:
        """End the thread."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._progress_at, self._is_busy = time.monotonic(), True
            try:
                job()
            except BaseException as error:
                self._is_busy = False
                self.call_in_main(lambda error=error: _raised(error))  # type: ignore[misc]  # mypy and defaults
                return
            self._progress_at, self._is_busy = time.monotonic(), False
            job = None  # drop the references of the finished job


def _raised(error: BaseException) -> None:
    raise error
