"""The threads around a rank's detector: one calls the store, one reads the clock.

Knows: the names of beats in a store, threads, the clock, how to end a process. Does not know: the decisions
that follow from beats.

The thread that calls the store may hang there if the process that hosts the store is stopped. So the other
thread only reads the clock, and never waits for the first. The lock around their shared `FailureDetector` is
held while one value replaces another, never during a call of the store.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

from cotswold.errors import ANOTHER_RANK_EXIT, RankError
from cotswold.host.process_info import is_stopped, kill_by_identity, usage_reader
from cotswold.launch import rank_log
from cotswold.launch.signed_store import SignedStore
from cotswold.launch.watch.abort_reason import AbortReason
from cotswold.launch.watch.failure_detector import TICK_SECONDS, FailureDetector
from cotswold.launch.watch.role import Role

ABORT_KEY = "end"
"""Name of the reason in the store."""
_FLUSH_SECONDS = 2.0


def beat_key(rank: int) -> str:
    """Name of a rank's beats in the store."""
    return f"beat/{rank}"


class Monitor:
    """The threads of a rank's detector, from `start` until `leave` or `fail`.

    The thread that works creates it. ``parent`` is the process without which this one must not live. When the
    detector concludes that all ranks must stop, the monitor prints one sentence that ends with ``note``, and
    ends the process, because the main thread may hang in an exchange. The exit code is 75 if another rank is
    the reason, 1 if this rank itself hung or was suspended.
    """

    def __init__(self, store: SignedStore, role: Role, *, parent: int | None, note: str) -> None:
        self._store, self._role, self._parent, self._note = store, role, parent, note
        self._usage = usage_reader(threading.get_ident())
        self._lock = threading.Lock()
        self._detector = FailureDetector.begin(role, self._usage(), time.monotonic())
        self._processes: Sequence[str] = ()
        self._wake, self._stop = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=work, name=f"cotswold detector {number}", daemon=True)
            for number, work in enumerate((self._run_store_thread, self._run_clock_thread))
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def absent_ranks(self) -> list[int]:
        """Return ranks whose first beat has not arrived."""
        return self._state().absent_ranks

    def set_members(self, names: Sequence[str], processes: Sequence[str]) -> None:
        """Set the names of the ranks and, once all have arrived, the identities of their processes."""
        with self._lock:
            self._detector, self._processes = self._detector.set_names(names), tuple(processes)

    @contextmanager
    def mark_exchange(self) -> Iterator[None]:
        """Mark this rank as waiting in the next exchange, for a `with` block.

        All ranks enter exchanges in the same order.
        """
        self._apply(lambda detector, _: detector.enter_exchange())
        try:
            yield
        finally:
            self._apply(lambda detector, _: detector.leave_exchange())

    def leave(self) -> None:
        """Announce that this rank is done, wait until all others are, then stop.

        The host of the store waits until the others no longer need it.
        """
        try:
            self._apply_and_wake(lambda detector, _: detector.finish_work())
            self._wait(lambda detector: detector.all_done)
            self._apply_and_wake(lambda detector, _: detector.leave())
            self._wait(lambda detector: detector.can_leave, self._role.leave_timeout_seconds)
        finally:  # also after Ctrl-C: a rank that continues in a notebook is not monitored
            self._stop_threads(self._role.interval_seconds)

    def fail(self, sentence: str, *, peer_lost: bool) -> None:
        """Publish why this rank fails, and stop beating.

        If ``peer_lost``, a connection to another rank broke. The rank then first waits a few beats for the
        detection of the dead rank; this process then ends here with a sentence that names that rank.
        """
        try:
            if peer_lost:
                self._apply(lambda detector, _: detector.suspect())
                self._wait(lambda _: False, self._role.suspicion_seconds)
            self._apply_and_wake(lambda detector, now: detector.fail(sentence, now))
            self._wait(lambda detector: detector.is_reported, self._role.publish_seconds)
        finally:
            self._stop_threads(2 * TICK_SECONDS)  # no thread should be in the store while Python ends

    def _apply(self, transition: Callable[[FailureDetector, float], FailureDetector]) -> FailureDetector:
        with self._lock:
            self._detector = transition(self._detector, time.monotonic())
            return self._detector

    def _state(self) -> FailureDetector:
        return self._apply(lambda detector, _: detector)

    def _apply_and_wake(self, transition: Callable[[FailureDetector, float], FailureDetector]) -> None:
        self._apply(transition)
        self._wake.set()

    def _wait(self, until: Callable[[FailureDetector], bool], seconds: float = float("inf")) -> None:
        """Sleep in slices, so that Python handles signals."""
        end = time.monotonic() + seconds
        while not until(self._state()) and time.monotonic() < end:
            time.sleep(TICK_SECONDS / 2)

    def _stop_threads(self, seconds: float) -> None:
        self._stop.set()
        self._wake.set()
        for thread in self._threads:
            thread.join(seconds)

    def _run_store_thread(self) -> None:
        """Body of the thread that calls the store."""
        while not self._stop.is_set():
            try:
                detector = self._exchange_beats()
            # torch's DistError: the connection is closed, or the store's own timeout has passed.
            except RuntimeError:
                self._apply(FailureDetector.disconnect)
                return
            if detector.is_silent:
                return
            self._wake.wait(detector.pause_seconds)
            self._wake.clear()

    def _exchange_beats(self) -> FailureDetector:
        """Write the next message, and read the messages of all others."""
        usage = self._usage()
        message = self._apply(lambda detector, now: detector.prepare_beat(usage, now)).message
        if message.abort_reason is not None:
            self._store.write_if_absent(ABORT_KEY, message.abort_reason.dumps())
        self._store.write(beat_key(self._role.rank), message.beat.dumps())
        *said, end = self._store.read([*map(beat_key, range(self._role.size)), ABORT_KEY])
        return self._apply(lambda detector, now: detector.receive(said, end, now))

    def _run_clock_thread(self) -> None:
        """Body of the thread that reads the clock."""
        while not self._stop.wait(TICK_SECONDS):
            detector = self._apply(
                lambda detector, now: detector.tick(now, parent_gone=self._has_parent_exited())
            )
            if detector.abort_reason is not None:
                self._abort(detector.abort_reason)

    def _has_parent_exited(self) -> bool:
        return self._parent is not None and os.getppid() != self._parent

    def _abort(self, reason: AbortReason) -> NoReturn:
        code = RankError.exit_code if reason.rank == self._role.rank else ANOTHER_RANK_EXIT
        # A thread that holds the lock of a stream may hang; the process ends in any case.
        timer = threading.Timer(_FLUSH_SECONDS, os._exit, (code,))
        timer.daemon = True
        timer.start()
        try:
            with suppress(OSError, ValueError):  # a closed terminal or stream
                sys.stdout.flush()
                sys.stderr.flush()
            rank_log.log_message(f"{reason.sentence}; stopping" + (f" ({self._note})" if self._note else ""))
            # A suspended process would be left behind. The parent handles it if there is one, unless the
            # parent is suspended itself.
            orphaned = self._parent is None or is_stopped(self._parent)
            if reason.silent and reason.rank is not None and reason.rank != self._role.rank and orphaned:
                with self._lock:
                    processes = self._processes
                if processes:
                    kill_by_identity(processes[reason.rank])
        finally:
            os._exit(code)
