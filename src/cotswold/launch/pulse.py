"""The heartbeat of a rank: it says that it lives, and ends this process when another does not.

Knows: the names of beats in a store, two threads, the end of a process. Does not know: how the store came
about, what the ranks do.

Every rank keeps ``beat/<rank>`` in the store. ``end`` holds the verdict: whoever first sees a death, or
fails, writes it, and all who read it tell the same story. One thread speaks with the store, and may hang in
it for ever when the process that keeps it is stopped; the other looks only at the clock.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

from cotswold.host.process import effort_of, is_stopped, kill
from cotswold.launch import own_log
from cotswold.launch.beat import Beat, Rest, State, newest, stalled
from cotswold.launch.signed import SignedStore
from cotswold.launch.verdict import STOPPING, Verdict, minutes
from cotswold.launch.watch import Watch

END = "end"
"""The name of the verdict in the store."""
_TICK_SECONDS = 0.1
_FLUSH_SECONDS = 2.0
_TELLING_BEATS = 4
"""Beats within which all who live have read a verdict."""
_SUSPICION_BEATS = 4
"""Beats that a rank may miss once a connection has broken: then some process is surely gone."""


def name_of(rank: int) -> str:
    """Where the beats of a rank are in the store."""
    return f"beat/{rank}"


class Pulse:
    """Beats for ``rank`` of ``size`` from `start` on, until `leave` or `fail`; made by the thread that works.

    ``keeper`` is the rank whose process keeps the store, None if the launcher does; ``parent`` the process
    without which this one must not live. When a rank is silent for ``patience_seconds``, or does nothing for
    ``stall_seconds`` while others wait for it, or a verdict is in the store, or the store is gone, one
    sentence goes to stderr and the process ends with exit code 1: the main thread may hang in an exchange.
    """

    def __init__(
        self,
        store: SignedStore,
        rank: int,
        size: int,
        *,
        patience_seconds: float,
        stall_seconds: float,
        keeper: int | None,
        parent: int | None,
    ) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._patience, self._stall = patience_seconds, stall_seconds
        self._keeper, self._parent = keeper, parent
        self._every = min(1.0, patience_seconds / 5)
        self.names: Sequence[str] = [f"rank {each}" for each in range(size)]
        self.processes: Sequence[str] = [""] * size
        self._state = State.HERE
        self._exchanges, self._waiting = 0, False
        self._effort = effort_of(threading.get_ident())
        self._rest = Rest(self._effort(), time.monotonic())
        self._count = 0
        self._suspicious = False
        self._stood_still = 0.0
        self._verdict: Verdict | None = None
        self._beats: list[Beat | None] = [None] * size
        self._answered = time.monotonic()
        self._poke, self._stop, self._told = threading.Event(), threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=work, name=f"cotswold {work.__name__.strip('_')}", daemon=True)
            for work in (self._converse, self._judge)
        ]

    def start(self) -> None:
        """Begin to beat and to watch."""
        for thread in self._threads:
            thread.start()

    def absent(self) -> list[int]:
        """Ranks that have not come yet."""
        return [rank for rank, beat in enumerate(self._beats) if beat is None]

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """While it lasts, this rank waits for others in one more exchange, which all enter in one order."""
        self._exchanges += 1
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False

    def leave(self) -> None:
        """Say that this rank is done, wait for all others to be, then stop: nobody takes it for a death.

        The keeper of the store waits for the others to need it no more.
        """
        self._say(State.DONE)
        self._wait(lambda: all(beat is not None and beat.state is not State.HERE for beat in self._beats))
        self._say(State.GONE)
        seconds = self._patience if self._rank == self._keeper else 2 * self._every
        self._wait(self._rest_gone if self._rank == self._keeper else self._said_gone, seconds)
        self._halt()

    def fail(self, sentence: str, *, peer_lost: bool) -> None:
        """Tell the others why this rank fails, and stop beating.

        ``peer_lost``: it fails because a connection to another rank broke, so it first waits a few beats for
        that one to be found; this process then ends here, with a sentence that names the rank.
        """
        if peer_lost:
            self._suspicious = True
            self._wait(lambda: False, (_SUSPICION_BEATS + _TELLING_BEATS + 2) * self._every)
        self._stop.set()
        self._poke.set()
        verdict = Verdict(self._rank, f"{self.names[self._rank]} failed: {sentence}", silent=False)
        # the store may hang; nobody waits for it longer than this
        telling = threading.Thread(target=self._tell, args=(verdict,), daemon=True)
        telling.start()
        telling.join(_TELLING_BEATS * self._every)
        self._told.set()
        telling.join(2 * _TICK_SECONDS)  # no thread should be in the store while Python ends

    def _tell(self, verdict: Verdict) -> None:
        self._threads[0].join()
        try:
            self._store.write_first(END, verdict.dumps())
            self._beat(State.GONE)
            while self._rank == self._keeper and not self._rest_gone() and not self._told.is_set():
                self._told.wait(_TICK_SECONDS)
                self._read()
        except RuntimeError:  # the store is gone; the others know by that
            return

    def _say(self, state: State) -> None:
        self._state = state
        self._poke.set()

    def _wait(self, until: Callable[[], bool], seconds: float = float("inf")) -> None:
        """Sleep in slices, so that Python hears signals."""
        end = time.monotonic() + seconds
        while not until() and time.monotonic() < end:
            time.sleep(_TICK_SECONDS / 2)

    def _halt(self) -> None:
        self._stop.set()
        self._poke.set()
        for thread in self._threads:
            thread.join(self._every)

    def _said_gone(self) -> bool:
        own = self._beats[self._rank]
        return own is not None and own.state is State.GONE

    def _rest_gone(self, dead: int | None = None) -> bool:
        return all(
            beat is None or beat.state is State.GONE
            for rank, beat in enumerate(self._beats)
            if rank not in (self._rank, dead)
        )

    def _beat(self, state: State) -> None:
        self._count += 1
        self._rest = self._rest.after(self._effort(), time.monotonic())
        idle = self._rest.idle_seconds
        beat = Beat(self._count, state, self._exchanges, self._waiting, idle)
        self._store.write(name_of(self._rank), beat.dumps())

    def _read(self) -> Verdict | None:
        """Take in all beats; returns the verdict."""
        *said, end = self._store.read([*map(name_of, range(self._size)), END])
        self._beats = [newest(known, now) for known, now in zip(self._beats, said, strict=True)]
        self._answered = time.monotonic()
        return None if end is None else Verdict.loads(end)

    def _converse(self) -> None:
        """The thread that speaks with the store."""
        watch = Watch(3 * self._every, time.monotonic())
        while not self._stop.is_set():
            state = self._state
            try:
                self._beat(state)
                verdict = self._read()
                watch.hear(self._counts(), self._answered)
                verdict = verdict or self._silent(watch) or self._stalled()
                if verdict is not None:
                    self._pass_on(verdict)
                    return
            # torch's DistError: the connection is closed, or no answer came within the store's own time
            except RuntimeError:
                if self._state is not State.GONE and not self._stop.is_set():
                    self._conclude(self._keeper_lost())
                return
            if state is State.GONE and self._rank != self._keeper:
                return
            self._poke.wait(self._every if state is State.HERE else _TICK_SECONDS)
            self._poke.clear()

    def _pass_on(self, verdict: Verdict) -> None:
        """Tell the others, and end; the keeper only once they know, for the store goes with it."""
        enough = threading.Timer(_TELLING_BEATS * self._every, self._conclude, (verdict,))
        enough.daemon = True
        enough.start()  # ends this process also while the store hangs
        self._store.write_first(END, verdict.dumps())
        self._beat(State.GONE)
        while self._rank == self._keeper and not self._rest_gone(verdict.rank):
            time.sleep(_TICK_SECONDS)
            self._read()
        self._conclude(verdict)

    def _conclude(self, verdict: Verdict) -> None:
        self._verdict = self._verdict or verdict

    def _known(self) -> dict[int, Beat]:
        """The newest beat of each rank that has come."""
        return {rank: beat for rank, beat in enumerate(self._beats) if beat is not None}

    def _counts(self) -> dict[int, str]:
        """The beats of those who must go on beating."""
        return {
            rank: str(beat.count)
            for rank, beat in self._known().items()
            if rank != self._rank and beat.state is State.HERE
        }

    def _silent(self, watch: Watch) -> Verdict | None:
        # after a standstill, too, the whole patience: all may have been suspended, and wake up one by one
        patience = min(self._patience, _SUSPICION_BEATS * self._every) if self._suspicious else self._patience
        rank = watch.dead(patience)
        if rank is None:
            return None
        if self._stood_still:
            return self._own_standstill()
        silence = f"has not been heard of for {patience:.3g} s"
        if self._suspicious:
            silence = f"is gone: a connection broke, and it {silence}"
        return Verdict(rank, f"{self.names[rank]} {silence}", silent=True)

    def _stalled(self) -> Verdict | None:
        rank = stalled(self._known(), self._stall)
        if rank is None:
            return None
        idle = f"lives, but has done nothing for {minutes(self._stall)} while others wait for it"
        return Verdict(rank, f"{self.names[rank]} {idle}", silent=False)  # it beats, and hears of it

    def _own_standstill(self) -> Verdict:
        return Verdict(
            self._rank,
            f"{self.names[self._rank]} stood still for {self._stood_still:.0f} s, and was given up",
            silent=False,
        )

    def _keeper_lost(self) -> Verdict:
        """The store does not answer, or its connection broke: another may have killed who stood still."""
        name = "the launcher's store" if self._keeper is None else self.names[self._keeper]
        silent = time.monotonic() - self._answered
        if silent > 3 * self._every:
            return Verdict(self._keeper, f"{name} has not been heard of for {silent:.2g} s", silent=True)
        return Verdict(self._keeper, f"{name} is gone: the connection to it broke", silent=True)

    def _judge(self) -> None:
        """The thread that looks at the clock."""
        last = resumed = time.monotonic()
        silent, answered = 0.0, self._answered
        while not self._stop.wait(_TICK_SECONDS):
            now = time.monotonic()
            if now - last > self._patience / 2:
                self._stood_still, resumed = now - last, now
            elif now - resumed > self._patience + _SUSPICION_BEATS * self._every:
                self._stood_still = 0.0  # nobody has given it up
            # time in which this process was stopped is no silence of the store
            silent = silent + min(now - last, 1.0) if answered == self._answered else 0.0
            last, answered = now, self._answered
            if silent > self._patience:
                self._conclude(self._keeper_lost())
            if self._parent is not None and os.getppid() != self._parent:
                self._verdict = Verdict(None, "the command that started this rank is gone", silent=False)
            if self._verdict is not None:
                self._end(self._verdict)

    def _end(self, verdict: Verdict) -> NoReturn:
        if self._stood_still and verdict.rank in (self._rank, self._keeper):
            verdict = self._own_standstill()
        # whoever holds the lock of a stream may hang; the process ends all the same
        timer = threading.Timer(_FLUSH_SECONDS, os._exit, (1,))
        timer.daemon = True
        timer.start()
        try:
            with suppress(OSError, ValueError):  # a terminal that is gone, a stream that is closed
                sys.stdout.flush()
                sys.stderr.flush()
            own_log.say(verdict.sentence + STOPPING)
            # a process that stands still would be left behind; where there is a parent, that sees to it, but
            # for one that stands still itself
            orphaned = self._parent is None or is_stopped(self._parent)
            if verdict.silent and verdict.rank is not None and orphaned:
                kill(self.processes[verdict.rank])
        finally:
            os._exit(1)
