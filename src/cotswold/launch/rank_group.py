"""Supervise the ranks of one start on this host until all have ended.

Knows: the given processes, signals to them, exit codes, last lines of logs. Does not know: how processes are
started, torch, what ranks do.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cotswold.errors import ANOTHER_RANK_EXIT
from cotswold.host.process_info import is_stopped
from cotswold.host.processes import Process, how
from cotswold.launch.logs import Logs
from cotswold.launch.signals import ASKING, Asked, passed_on

_POLL_SECONDS = 0.05
_TELL_SECONDS = 0.5
"""Seconds to wait after a death before reporting it: rank 0 may report it on the terminal itself."""
_GRACE_SECONDS = 8.0
"""Seconds that the other ranks have after a death to end by themselves."""
_TERM_SECONDS = 2.0
"""Seconds from SIGTERM to SIGKILL, and from a second signal to SIGKILL."""
_STOPPED = {128 + number for number in ASKING}
"""Exit codes of ranks that stopped on request."""


@dataclass
class RankGroup:
    """The ranks of one start, in rank order."""

    processes: Sequence[Process]
    logs: Logs
    asked: Asked
    _ended: dict[int, int] = field(default_factory=dict)
    """Exit codes, in the order in which ranks ended."""
    _killed: set[int] = field(default_factory=set)
    """Ranks that this process killed."""
    _told: bool = False
    """True once the reason of the end has been reported, by this process or by rank 0."""
    _termed: bool = False
    _passed: int = 0
    """Number of signals passed on."""
    _failed_at: float | None = None
    _left_at: float | None = None
    """Time at which ranks were first asked to leave at once."""
    _oom_kills: int = field(default_factory=lambda: _oom_kills())

    def wait(self) -> int:
        """Wait until all ranks have ended, handle deaths, and return the command's exit code."""
        while len(self._ended) < len(self.processes):
            time.sleep(_POLL_SECONDS)
            self.logs.settle()
            self._collect()
            if self.asked.suspended:
                self.asked.suspended = False
                self._suspend()
            self._pass_on()
            if self._left_at is None and self._failed():
                self._see_to_death()
        if self._left_at is not None:
            self._tell_left()
        elif not self._told:
            self._tell()
        return self._code()

    def kill(self) -> None:
        """Kill all remaining ranks and their children."""
        for process in self.processes:
            process.end()

    def _pass_on(self) -> None:
        """Pass on the signals received; after a second signal, kill ranks that do not leave in time."""
        wanted = passed_on(self.asked.heard)
        for number in wanted[self._passed :]:
            self._signal(number)
        self._passed = len(wanted)
        if self._passed < 2:
            return
        self._left_at = self._left_at or time.monotonic()
        if time.monotonic() - self._left_at > _TERM_SECONDS:
            self._kill_rest()

    def _see_to_death(self) -> None:
        """Report which rank died first, and end ranks that do not end by themselves."""
        self._failed_at = self._failed_at or time.monotonic()
        elapsed = time.monotonic() - self._failed_at
        if not self._told and elapsed > (_GRACE_SECONDS if self._culprit() is None else _TELL_SECONDS):
            self._told = True
            self._tell()
        if elapsed > _TELL_SECONDS:
            self._end_stopped()
        if not self._termed and elapsed > _GRACE_SECONDS:
            self._termed = True
            self._signal(signal.SIGTERM)
        if elapsed > _GRACE_SECONDS + _TERM_SECONDS:
            for rank in self._living():
                say(f"rank {rank} did not end; killed it")
            self._kill_rest()

    def _suspend(self) -> None:
        """Stop all ranks, then this process, until it is resumed (the shell's Ctrl-Z and fg)."""
        keeper, *others = self.processes
        for process in others:
            process.send(signal.SIGSTOP)
        time.sleep(_POLL_SECONDS)  # the rank that hosts the store first answers requests of the others
        keeper.send(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._signal(signal.SIGCONT)

    def _collect(self) -> None:
        for rank, process in enumerate(self.processes):
            code = None if rank in self._ended else process.code()
            if code is not None:
                self._ended[rank] = code
                self.logs.foot(rank, how(code))

    def _failed(self) -> list[int]:
        """Return ranks that failed, in the order of their ends; stopping on request is no failure."""
        return [
            rank
            for rank, code in self._ended.items()
            if code != 0 and not (self.asked.heard and (code in _STOPPED or -code in ASKING))
        ]

    def _culprit(self) -> int | None:
        """Return the first rank that ended for its own reasons; None if there is no such rank yet.

        A rank that ends because of another has a special exit code. Rank 0 prints on the terminal, where its
        exit codes 1 and 2 need no explanation. If rank 0 reports a user's mistake, the other ranks made the
        same.
        """
        # the informative exit codes first
        for rank in sorted(self._failed(), key=lambda rank: self._ended[rank] == 1):
            code = self._ended[rank]
            if rank in self._killed or code == ANOTHER_RANK_EXIT:
                continue
            if code not in (1, 2) or (rank and self._ended.get(0) != 2):
                return rank
        return None

    def _code(self) -> int:
        failed, asked = self._failed(), self.asked.first
        codes = [self._ended[rank] for rank in failed if rank not in self._killed]
        if asked is not None and 2 not in codes:
            # ranks that wait for a rank that left end as if it had died
            return 128 + asked if any(self._ended.values()) else 0
        if not failed:
            return 0
        return 2 if 2 in codes else codes[0] if codes[:1] and codes[0] in _STOPPED else 1

    def _tell(self) -> None:
        """Report which rank died, and the reason."""
        rank = self._culprit()
        if rank is None:
            return
        code = self._ended[rank]
        sentence = f"rank {rank} {how(code)}"
        if code == -signal.SIGKILL:
            if _oom_kills() > self._oom_kills:
                sentence += ", by the kernel: out of memory"
            else:
                sentence += " (by another process, or for lack of memory: see the kernel's log)"
        lines = self.logs.tail(rank) if rank else []
        say(sentence + (f"; the last lines of {self.logs.where(rank)}:" if lines else ""))
        for line in lines:
            _print(f"  {line}")

    def _tell_left(self) -> None:
        """Report that all ranks left at once, unless rank 0, which knows about its checkpoint, did."""
        if 0 in self._killed:
            say("left at once; progress since the last checkpoint is lost")
        elif self._ended[0] < 0:
            say("left at once")

    def _end_stopped(self) -> None:
        """Kill stopped ranks: they cannot end by themselves."""
        for rank, process in enumerate(self.processes):
            if rank not in self._ended and is_stopped(process.pid):
                say(f"rank {rank} was stopped by a signal; killed it")
                self._killed.add(rank)
                process.send(signal.SIGKILL)

    def _living(self) -> list[int]:
        return [rank for rank, process in enumerate(self.processes) if process.code() is None]

    def _kill_rest(self) -> None:
        self._killed.update(self._living())
        self.kill()
        self._collect()

    def _signal(self, number: int) -> None:
        for process in self.processes:
            process.send(number)


def _oom_kills() -> int:
    """Number of processes that the kernel's OOM killer has ended since boot; 0 if unknown."""
    try:
        text = Path("/proc/vmstat").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), 0)


def say(sentence: str) -> None:
    """Print a sentence on standard error; a closed terminal is ignored."""
    # A rank that was killed may have left the cursor hidden.
    shown = "\x1b[?25h" if sys.stderr.isatty() else ""
    _print(f"{shown}cotswold: {sentence}")


def _print(line: str) -> None:
    with suppress(OSError):  # a closed terminal must not end the ranks
        print(line, file=sys.stderr, flush=True)
