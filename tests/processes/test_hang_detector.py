"""Exit of a process after a step of its thread hangs: real threads, a fake clock."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace

import pytest

from cotswold.errors import MachineError
from cotswold.host.process_info import thread_activity
from cotswold.processes import hang_detector as watch_module
from cotswold.processes import worker_thread as thread_module
from cotswold.processes.hang_detector import WorkerHangDetector
from cotswold.processes.worker_thread import WorkerThread
from cotswold.testing.signals import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
BOUND = 10.0


class Leading:
    """A work that other processes compute, too."""

    def __init__(self, *processes: int) -> None:
        self.processes: Sequence[object] = [SimpleNamespace(pid=each, name="process 1") for each in processes]
        self.owing, self.is_awaiting = self.processes, True


class Thread:
    """A thread that computes, observed by a test once per second."""

    def __init__(self) -> None:
        self.worker_thread, self.over, self.now = WorkerThread(), threading.Event(), 0.0

    def do(self, job: Callable[[], object]) -> None:
        """Run a job to its end."""
        done = threading.Event()
        self.worker_thread.submit(job)
        self.worker_thread.submit(done.set)
        assert done.wait(20)
        wait_until(lambda: self.worker_thread.step is None)

    def hang(self) -> None:
        """Wait from now on until the end of the test."""
        begun = threading.Event()

        def wait() -> None:
            begun.set()
            self.over.wait(60)

        self.worker_thread.submit(wait)
        assert begun.wait(20)
        wait_until(
            lambda: (seen := thread_activity(self.worker_thread.number)) is not None and seen.state == "S"
        )

    def ends(self, watch: WorkerHangDetector, seconds: int) -> tuple[int, str] | None:
        """Return the number of seconds until the hang is detected, and the message; None if it is not."""
        for second in range(seconds):
            self.now += 1.0
            try:
                watch.check(self.now)
            except MachineError as error:
                return second, str(error)
        return None


@pytest.fixture
def thread() -> Iterator[Thread]:
    made = Thread()
    yield made
    made.over.set()
    made.worker_thread.close()


def test_who_has_set_parameters_and_computed_nothing_has_the_patience_of_the_first_step(
    thread: Thread,
) -> None:
    watch = WorkerHangDetector("worker-1", thread.worker_thread, object(), BOUND)
    thread.do(lambda: None)
    thread.hang()
    found = thread.ends(watch, 200)
    assert found is not None and 120 <= found[0] <= 125
    assert found[1].startswith("worker-1 hangs: it has done nothing")


def test_whoever_has_computed_a_portion_has_that_of_every_other(thread: Thread) -> None:
    watch = WorkerHangDetector("worker-1", thread.worker_thread, object(), BOUND)
    thread.do(thread.worker_thread.step_finished)
    thread.hang()
    found = thread.ends(watch, 200)
    assert found is not None and 30 <= found[0] <= 35


def test_a_job_of_many_steps_is_not_one_long_step(thread: Thread) -> None:
    watch = WorkerHangDetector("worker-1", thread.worker_thread, object(), BOUND)
    asked, done = threading.Semaphore(0), threading.Semaphore(0)

    def measure() -> None:
        for _ in range(6):
            assert asked.acquire(timeout=20)
            thread.worker_thread.step_finished()
            done.release()

    thread.worker_thread.submit(measure)
    wait_until(lambda: thread.worker_thread.step is not None)
    for _ in range(6):
        assert thread.ends(watch, 20) is None
        asked.release()
        assert done.acquire(timeout=20)
    thread.hang()
    found = thread.ends(watch, 400)
    assert found is not None and 60 <= found[0] <= 75


def test_a_step_in_which_the_whole_process_was_stopped_is_not_a_long_one(
    thread: Thread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_module, "time", SimpleNamespace(monotonic=lambda: thread.now))
    watch = WorkerHangDetector("replica-1", thread.worker_thread, object(), BOUND)
    goes_on = threading.Event()

    def step() -> None:
        assert goes_on.wait(20)
        thread.worker_thread.step_finished()

    thread.worker_thread.submit(step)
    wait_until(lambda: thread.worker_thread.step is not None)
    assert thread.ends(watch, 5) is None
    thread.now += 3600.0  # of which nobody sees anything
    assert thread.ends(watch, 5) is None
    goes_on.set()
    thread.hang()
    found = thread.ends(watch, 400)
    assert found is not None and 30 <= found[0] <= 50


def test_nobody_is_said_to_hang_where_a_process_that_computes_is_not_seen(
    thread: Thread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "descendant_activity", dict)
    runs = WorkerHangDetector("replica-1", thread.worker_thread, Leading(os.getpid()), BOUND)
    thread.hang()
    assert thread.ends(runs, 200) is None
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    ended = WorkerHangDetector("replica-1", thread.worker_thread, Leading(process.pid), BOUND)
    assert thread.ends(ended, 200) is not None, "it is no more"


class Feeding:
    """A work with remote samples."""

    def __init__(self) -> None:
        self.is_starved, self.is_fed = False, True

    def expect(self, batches: Sequence[Sequence[int]]) -> None:
        """Do nothing: there is no server."""


def test_who_waits_for_samples_of_data_servers_does_not_hang(thread: Thread) -> None:
    fed = Feeding()
    watch = WorkerHangDetector("replica-1", thread.worker_thread, fed, BOUND)
    thread.hang()
    fed.is_starved = True
    assert thread.ends(watch, 300) is None
    fed.is_starved = False
    ended = thread.ends(watch, 300)
    assert ended is not None and "replica-1 hangs" in ended[1]
