"""The heartbeat of a rank: it says that it lives, and ends this process when another does not.

Knows: the keys of beats in a store, two threads, the end of a process. Does not know: how the store came
about, what the ranks do.

Every rank keeps ``beat/<rank>`` in the store: a counter, or a word. ``end`` holds the verdict: whoever first
sees a death, or fails, writes it, and all who read it tell the same story. One thread speaks with the store,
and may hang in it for ever when the process that keeps it is stopped; the other looks only at the clock.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from cotswold.launch import own_log
from cotswold.launch.process import kill
from cotswold.launch.watch import Watch

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # documented, not in __all__

ABSENT, DONE, GONE = "absent", "done", "gone"
"""A rank that has not come yet; one that has finished its work; one that needs the store no more."""
STOPPING = "; stopping (the last checkpoint is whole)"
"""How the sentence ends with which a rank leaves for another's sake."""
_WORDS = (ABSENT, DONE, GONE)
NO_END = "-"
_TICK_SECONDS = 0.1
_FLUSH_SECONDS = 2.0
_TELLING_BEATS = 4
"""Beats within which all who live have read a verdict."""
_SUSPICION_BEATS = 4
"""Beats that a rank may miss once a connection has broken: then some process is surely gone."""


@dataclass(frozen=True)
class Verdict:
    """Why all must stop, and whose doing it is: a rank's, or nobody's.

    ``silent``: the rank has not said so itself; it may stand still.
    """

    rank: int | None
    sentence: str
    silent: bool

    def dumps(self) -> str:
        """As text for the store."""
        return json.dumps([self.rank, self.sentence, self.silent])

    @classmethod
    def loads(cls, text: str) -> Verdict:
        """From the store's text."""
        return cls(*json.loads(text))


class Pulse:
    """Beats for ``rank`` of ``size`` from `start` on, until `leave` or `fail`.

    ``keeper`` is the rank whose process keeps the store, None if the launcher does; ``parent`` the process
    without which this one must not live. When a rank is silent for ``patience_seconds``, or a verdict is in
    the store, or the store is gone, one sentence goes to stderr and the process ends with exit code 1: the
    main thread may hang in an exchange.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        patience_seconds: float,
        keeper: int | None,
        parent: int | None,
    ) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._patience, self._keeper, self._parent = patience_seconds, keeper, parent
        self._every = min(1.0, patience_seconds / 5)
        self.names: Sequence[str] = [f"rank {each}" for each in range(size)]
        self.processes: Sequence[str] = [""] * size
        self._word: str | None = None
        self._suspicious = False
        self._stood_still = 0.0
        self._verdict: Verdict | None = None
        self._beats: list[str] = [ABSENT] * size
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
        return [rank for rank, beat in enumerate(self._beats) if beat == ABSENT]

    def leave(self) -> None:
        """Say that this rank is done, wait for all others to be, then stop: nobody takes it for a death.

        The keeper of the store waits for the others to need it no more.
        """
        self._say(DONE)
        self._wait(lambda: all(beat in (DONE, GONE) for beat in self._beats))
        self._say(GONE)
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
            self._store.compare_set("end", NO_END, verdict.dumps())
            self._store.set(f"beat/{self._rank}", GONE)
            while self._rank == self._keeper and not self._rest_gone() and not self._told.is_set():
                self._told.wait(_TICK_SECONDS)
                self._read()
        except RuntimeError:  # the store is gone; the others know by that
            return

    def _say(self, word: str) -> None:
        self._word = word
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
        return self._beats[self._rank] == GONE

    def _rest_gone(self, dead: int | None = None) -> bool:
        return all(
            beat in (GONE, ABSENT) for rank, beat in enumerate(self._beats) if rank not in (self._rank, dead)
        )

    def _read(self) -> str:
        """All beats; returns the verdict's text."""
        values = self._store.multi_get([*(f"beat/{rank}" for rank in range(self._size)), "end"])
        *self._beats, end = (value.decode() for value in values)
        self._answered = time.monotonic()
        return end

    def _converse(self) -> None:
        """The thread that speaks with the store."""
        watch, count = Watch(3 * self._every, time.monotonic()), 0
        while not self._stop.is_set():
            count += 1
            try:
                self._store.set(f"beat/{self._rank}", self._word or str(count))
                end = self._read()
                watch.hear(self._watched(), self._answered)
                verdict = Verdict.loads(end) if end != NO_END else self._silent(watch)
                if verdict is not None:
                    self._pass_on(verdict)
                    return
            # torch's DistError: the connection is closed, or no answer came within the store's own time
            except RuntimeError:
                if self._word != GONE and not self._stop.is_set():
                    self._conclude(self._keeper_lost())
                return
            if self._word == GONE and self._rank != self._keeper:
                return
            self._poke.wait(self._every if self._word is None else _TICK_SECONDS)
            self._poke.clear()

    def _pass_on(self, verdict: Verdict) -> None:
        """Tell the others, and end; the keeper only once they know, for the store goes with it."""
        enough = threading.Timer(_TELLING_BEATS * self._every, self._conclude, (verdict,))
        enough.daemon = True
        enough.start()  # ends this process also while the store hangs
        self._store.compare_set("end", NO_END, verdict.dumps())
        self._store.set(f"beat/{self._rank}", GONE)
        while self._rank == self._keeper and not self._rest_gone(verdict.rank):
            time.sleep(_TICK_SECONDS)
            self._read()
        self._conclude(verdict)

    def _conclude(self, verdict: Verdict) -> None:
        self._verdict = self._verdict or verdict

    def _watched(self) -> dict[int, str]:
        return {
            rank: beat for rank, beat in enumerate(self._beats) if rank != self._rank and beat not in _WORDS
        }

    def _silent(self, watch: Watch) -> Verdict | None:
        hurried = self._suspicious or self._stood_still
        patience = min(self._patience, _SUSPICION_BEATS * self._every) if hurried else self._patience
        rank = watch.dead(patience)
        if rank is None:
            return None
        if self._stood_still:
            return self._own_standstill()
        silence = f"has not been heard of for {patience:.3g} s"
        if self._suspicious:
            silence = f"is gone: a connection broke, and it {silence}"
        return Verdict(rank, f"{self.names[rank]} {silence}", silent=True)

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
            elif now - resumed > 2 * _SUSPICION_BEATS * self._every:
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
        sentence = f"cotswold: {verdict.sentence}{STOPPING}\n"
        try:
            sys.stdout.flush()
            sys.stderr.flush()
            os.write(2, sentence.encode("utf-8", "backslashreplace"))
            own_log.keep(sentence)
            # a process that stands still would be left behind; where there is a parent, that sees to it
            if verdict.silent and verdict.rank is not None and self._parent is None:
                kill(self.processes[verdict.rank])
        finally:
            os._exit(1)
