"""The threads around a rank's heartbeat: one speaks with the store, one looks at the clock.

Knows: the names of beats in a store, threads, the clock, the end of a process. Does not know: what follows
from beats (`heartbeat`), how the store came about, what the ranks do.

The thread that speaks with the store may hang in it for ever when the process that keeps it is stopped. So
the other only looks at the clock, and never waits for the first: the lock around what both know, the
`Heartbeat`, is held while one value is replaced by the next, never during a call of the store.
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
from cotswold.launch.watch.failure_detector import TICK_SECONDS, Heartbeat
from cotswold.launch.watch.role import Role
from cotswold.launch.watch.verdict import Verdict

END = "end"
"""The name of the verdict in the store."""
_FLUSH_SECONDS = 2.0


def name_of(rank: int) -> str:
    """Where the beats of a rank are in the store."""
    return f"beat/{rank}"


class Monitor:
    """Beats from `start` on, until `leave` or `fail`; made by the thread that works.

    ``parent`` is the process without which this one must not live. When the heartbeat concludes that all must
    stop, one sentence with ``note`` at its end goes to stderr and the process ends, since the main thread may
    hang in an exchange: with exit code 75 because of another, with 1 where this rank itself hung or stood
    still.
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
        """Begin to beat and to watch."""
        for thread in self._threads:
            thread.start()

    def absent(self) -> list[int]:
        """Ranks that have not come yet."""
        return self._now().absent

    def met(self, names: Sequence[str], processes: Sequence[str]) -> None:
        """Call the ranks by these names, and know their processes by identity, once all have come."""
        with self._lock:
            self._heartbeat, self._processes = self._heartbeat.met(names), tuple(processes)

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """While it lasts, this rank waits for others in one more exchange, which all enter in one order."""
        self._step(lambda heartbeat, _: heartbeat.entering())
        try:
            yield
        finally:
            self._step(lambda heartbeat, _: heartbeat.leaving())

    def leave(self) -> None:
        """Say that this rank is done, wait for all others to be, then stop: nobody takes it for a death.

        The keeper of the store waits for the others to need it no more.
        """
        try:
            self._say(lambda heartbeat, _: heartbeat.finished())
            self._wait(lambda heartbeat: heartbeat.all_done)
            self._say(lambda heartbeat, _: heartbeat.gone())
            self._wait(lambda heartbeat: heartbeat.may_leave, self._role.leaving_seconds)
        finally:  # also after Ctrl-C: who goes on in a notebook is watched by nobody
            self._halt(self._role.interval_seconds)

    def fail(self, sentence: str, *, peer_lost: bool) -> None:
        """Tell the others why this rank fails, and stop beating.

        ``peer_lost``: it fails because a connection to another rank broke, so it first waits a few beats for
        that one to be found; this process then ends here, with a sentence that names the rank.
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
        """Sleep in slices, so that Python hears signals."""
        end = time.monotonic() + seconds
        while not until(self._now()) and time.monotonic() < end:
            time.sleep(TICK_SECONDS / 2)

    def _halt(self, seconds: float) -> None:
        self._stop.set()
        self._poke.set()
        for thread in self._threads:
            thread.join(seconds)

    def _converse(self) -> None:
        """The thread that speaks with the store."""
        while not self._stop.is_set():
            try:
                heartbeat = self._speak()
            # torch's DistError: the connection is closed, or no answer came within the store's own time
            except RuntimeError:
                self._step(Heartbeat.broken)
                return
            if heartbeat.is_silent:
                return
            self._poke.wait(heartbeat.pause_seconds)
            self._poke.clear()

    def _speak(self) -> Heartbeat:
        """Say the next message, and hear what all others say."""
        usage = self._usage()
        message = self._step(lambda heartbeat, now: heartbeat.beating(usage, now)).message
        if message.end is not None:
            self._store.write_first(END, message.end.dumps())
        self._store.write(name_of(self._role.rank), message.beat.dumps())
        *said, end = self._store.read([*map(name_of, range(self._role.size)), END])
        return self._step(lambda heartbeat, now: heartbeat.heard(said, end, now))

    def _look(self) -> None:
        """The thread that looks at the clock."""
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
        # whoever holds the lock of a stream may hang; the process ends all the same
        timer = threading.Timer(_FLUSH_SECONDS, os._exit, (code,))
        timer.daemon = True
        timer.start()
        try:
            with suppress(OSError, ValueError):  # a terminal that is gone, a stream that is closed
                sys.stdout.flush()
                sys.stderr.flush()
            own_log.say(f"{verdict.sentence}; stopping" + (f" ({self._note})" if self._note else ""))
            # a process that stands still would be left behind; where there is a parent, that sees to it, but
            # for one that stands still itself
            orphaned = self._parent is None or is_stopped(self._parent)
            if verdict.silent and verdict.rank is not None and verdict.rank != self._role.rank and orphaned:
                with self._lock:
                    processes = self._processes
                if processes:
                    kill(processes[verdict.rank])
        finally:
            os._exit(code)
