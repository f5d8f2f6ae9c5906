"""The threads around a rank's heartbeat: one calls the store, one reads the clock.

Knows: the names of beats in a store, threads, the clock, how to end a process. Does not know: the decisions
that follow from beats.

The thread that calls the store may hang there if the process that hosts the store is stopped. So the other
thread only reads the clock, and never waits for the first. The lock around their shared `Heartbeat` is held
while one value replaces another, never during a call of the store.
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
from cotswold.host.process_info import is_stopped, kill, usage_of
from cotswold.launch import rank_log as own_log
from cotswold.launch.signed_store import SignedStore
from cotswold.launch.watch.abort_reason import Verdict
from cotswold.launch.watch.failure_detector import TICK_SECONDS, Heartbeat
from cotswold.launch.watch.role import Role

END = "end"
"""Name of the verdict in the store."""
_FLUSH_SECONDS = 2.0


def name_of(rank: int) -> str:
    """Name of a rank's beats in the store."""
    return f"beat/{rank}"


class Monitor:
    """The threads of a rank's heartbeat, from `start` until `leave` or `fail`.

    The thread that works creates it. ``parent`` is the process without which this one must not live. When the
    heartbeat concludes that all ranks must stop, the monitor prints one sentence that ends with ``note``, and
    ends the process, because the main thread may hang in an exchange. The exit code is 75 if another rank is
    the reason, 1 if this rank itself hung or was suspended.
    """

    def __init__(self, store: SignedStore, role: Role, *, parent: int | None, note: str) -> None:
        self._store, self._role, self._parent, self._note = store, role, parent, note
        self._usage = usage_of(threading.get_ident())
        self._lock = threading.Lock()
        self._heartbeat = Heartbeat.begin(role, self._usage(), time.monotonic())
        self._processes: Sequence[str] = ()
        self._poke, self._stop = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=work, name=f"cotswold heartbeat {number}", daemon=True)
            for number, work in enumerate((self._converse, self._look))
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def absent(self) -> list[int]:
        """Return ranks whose first beat has not arrived."""
        return self._now().absent

    def met(self, names: Sequence[str], processes: Sequence[str]) -> None:
        """Set the names of the ranks and, once all have arrived, the identities of their processes."""
        with self._lock:
            self._heartbeat, self._processes = self._heartbeat.met(names), tuple(processes)

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """Mark this rank as waiting in the next exchange, for a `with` block.

        All ranks enter exchanges in the same order.
        """
        self._step(lambda heartbeat, _: heartbeat.entering())
        try:
            yield
        finally:
            self._step(lambda heartbeat, _: heartbeat.leaving())

    def leave(self) -> None:
        """Announce that this rank is done, wait until all others are, then stop.

        The host of the store waits until the others no longer need it.
        """
        try:
            self._say(lambda heartbeat, _: heartbeat.finished())
            self._wait(lambda heartbeat: heartbeat.all_done)
            self._say(lambda heartbeat, _: heartbeat.gone())
            self._wait(lambda heartbeat: heartbeat.may_leave, self._role.leaving_seconds)
        finally:  # also after Ctrl-C: a rank that continues in a notebook is not monitored
            self._halt(self._role.interval_seconds)

    def fail(self, sentence: str, *, peer_lost: bool) -> None:
        """Publish why this rank fails, and stop beating.

        If ``peer_lost``, a connection to another rank broke. The rank then first waits a few beats for the
        detection of the dead rank; this process then ends here with a sentence that names that rank.
        """
        try:
            if peer_lost:
                self._step(lambda heartbeat, _: heartbeat.suspecting())
                self._wait(lambda _: False, self._role.suspicion_seconds)
            self._say(lambda heartbeat, now: heartbeat.failing(sentence, now))
            self._wait(lambda heartbeat: heartbeat.is_told, self._role.telling_seconds)
        finally:
            self._halt(2 * TICK_SECONDS)  # no thread should be in the store while Python ends

    def _step(self, happens: Callable[[Heartbeat, float], Heartbeat]) -> Heartbeat:
        with self._lock:
            self._heartbeat = happens(self._heartbeat, time.monotonic())
            return self._heartbeat

    def _now(self) -> Heartbeat:
        return self._step(lambda heartbeat, _: heartbeat)

    def _say(self, happens: Callable[[Heartbeat, float], Heartbeat]) -> None:
        self._step(happens)
        self._poke.set()

    def _wait(self, until: Callable[[Heartbeat], bool], seconds: float = float("inf")) -> None:
        """Sleep in slices, so that Python handles signals."""
        end = time.monotonic() + seconds
        while not until(self._now()) and time.monotonic() < end:
            time.sleep(TICK_SECONDS / 2)

    def _halt(self, seconds: float) -> None:
        self._stop.set()
        self._poke.set()
        for thread in self._threads:
            thread.join(seconds)

    def _converse(self) -> None:
        """Body of the thread that calls the store."""
        while not self._stop.is_set():
            try:
                heartbeat = self._speak()
            # torch's DistError: the connection is closed, or the store's own timeout has passed.
            except RuntimeError:
                self._step(Heartbeat.broken)
                return
            if heartbeat.is_silent:
                return
            self._poke.wait(heartbeat.pause_seconds)
            self._poke.clear()

    def _speak(self) -> Heartbeat:
        """Write the next message, and read the messages of all others."""
        usage = self._usage()
        message = self._step(lambda heartbeat, now: heartbeat.beating(usage, now)).message
        if message.end is not None:
            self._store.write_first(END, message.end.dumps())
        self._store.write(name_of(self._role.rank), message.beat.dumps())
        *said, end = self._store.read([*map(name_of, range(self._role.size)), END])
        return self._step(lambda heartbeat, now: heartbeat.heard(said, end, now))

    def _look(self) -> None:
        """Body of the thread that reads the clock."""
        while not self._stop.wait(TICK_SECONDS):
            heartbeat = self._step(
                lambda heartbeat, now: heartbeat.looked(now, parent_gone=self._parent_gone())
            )
            if heartbeat.conclusion is not None:
                self._end(heartbeat.conclusion)

    def _parent_gone(self) -> bool:
        return self._parent is not None and os.getppid() != self._parent

    def _end(self, verdict: Verdict) -> NoReturn:
        code = RankError.exit_code if verdict.rank == self._role.rank else ANOTHER_RANK_EXIT
        # A thread that holds the lock of a stream may hang; the process ends in any case.
        timer = threading.Timer(_FLUSH_SECONDS, os._exit, (code,))
        timer.daemon = True
        timer.start()
        try:
            with suppress(OSError, ValueError):  # a closed terminal or stream
                sys.stdout.flush()
                sys.stderr.flush()
            own_log.say(f"{verdict.sentence}; stopping" + (f" ({self._note})" if self._note else ""))
            # A suspended process would be left behind. The parent handles it if there is one, unless the
            # parent is suspended itself.
            orphaned = self._parent is None or is_stopped(self._parent)
            if verdict.silent and verdict.rank is not None and verdict.rank != self._role.rank and orphaned:
                with self._lock:
                    processes = self._processes
                if processes:
                    kill(processes[verdict.rank])
        finally:
            os._exit(code)
