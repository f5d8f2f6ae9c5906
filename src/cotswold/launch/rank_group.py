"""The ranks of one start on this host, watched until all have ended.

Knows: processes that it was given, signals to them, exit codes, last words. Does not know: how they are
started, torch, what they do.
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
"""After a death, wait this long for others: rank 0 may say the same on the terminal."""
_GRACE_SECONDS = 8.0
"""After a death, the time in which the others find out by themselves."""
_TERM_SECONDS = 2.0
"""From SIGTERM to SIGKILL, and from a second signal."""
_STOPPED = {128 + number for number in ASKING}
"""Exit codes of ranks that were asked to stop, and did."""


@dataclass
class RankGroup:
    """The ranks of one start, in their order."""

    processes: Sequence[Process]
    logs: Logs
    asked: Asked
    _ended: dict[int, int] = field(default_factory=dict)
    """Exit codes, in the order in which ranks ended."""
    _killed: set[int] = field(default_factory=set)
    """Ranks that we had to kill."""
    _told: bool = False
    """Whether enough has been said of how ranks ended."""
    _termed: bool = False
    _passed: int = 0
    """How many signals have been passed on."""
    _failed_at: float | None = None
    _left_at: float | None = None
    """When the ranks were told to leave at once."""
    _oom_kills: int = field(default_factory=lambda: _oom_kills())

    def wait(self) -> int:
        """Wait until all have ended, and see to it when one dies; returns the command's exit code."""
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
        """End whatever is left, and what it has started."""
        for process in self.processes:
            process.end()

    def _pass_on(self) -> None:
        """Pass on what signals ask for; whoever does not leave when it is to leave at once is killed."""
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
        """Tell whose death came first, and end those who do not end by themselves."""
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
                say(f"rank {rank} did not end and was killed")
            self._kill_rest()

    def _suspend(self) -> None:
        """Stop all ranks, then this process, until somebody lets it go on (the shell's Ctrl-Z and fg)."""
        keeper, *others = self.processes
        for process in others:
            process.send(signal.SIGSTOP)
        time.sleep(_POLL_SECONDS)  # the keeper of the store answers what they have asked
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
        """Ranks that ended as they should not, in that order; those that stopped when asked to did well."""
        return [
            rank
            for rank, code in self._ended.items()
            if code != 0 and not (self.asked.heard and (code in _STOPPED or -code in ASKING))
        ]

    def _culprit(self) -> int | None:
        """The first rank that ended for its own reasons; None while there are only others to be seen.

        A rank that ends because of another has an exit code of its own. Rank 0 speaks on the terminal, where
        its exit codes 1 and 2 need no explanation; a mistake that it tells is the others' as well.
        """
        for rank in sorted(self._failed(), key=lambda rank: self._ended[rank] == 1):  # the telling ones first
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
            # ranks that wait for one that has left end as if it had died
            return 128 + asked if any(self._ended.values()) else 0
        if not failed:
            return 0
        return 2 if 2 in codes else codes[0] if codes[:1] and codes[0] in _STOPPED else 1

    def _tell(self) -> None:
        """Say which rank died, and of what."""
        rank = self._culprit()
        if rank is None:
            return
        code = self._ended[rank]
        sentence = f"rank {rank} {how(code)}"
        if code == -signal.SIGKILL:
            if _oom_kills() > self._oom_kills:
                sentence += ", by the kernel, for want of memory"
            else:
                sentence += " (if nobody did that, memory may have run out: see the kernel's log)"
        lines = self.logs.tail(rank) if rank else []
        say(sentence + (f"; the last lines of {self.logs.where(rank)}:" if lines else ""))
        for line in lines:
            _print(f"  {line}")

    def _tell_left(self) -> None:
        """Say that all left at once, unless rank 0 has: it alone knows whether it had saved before."""
        if 0 in self._killed:
            say("left at once; nothing since the last checkpoint is kept")
        elif self._ended[0] < 0:
            say("left at once")

    def _end_stopped(self) -> None:
        """Kill ranks that are stopped: they cannot end by themselves."""
        for rank, process in enumerate(self.processes):
            if rank not in self._ended and is_stopped(process.pid):
                say(f"rank {rank} stands still, stopped by a signal, and was killed")
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
    """Processes that the kernel has ended for want of memory since it started; 0 where it does not say."""
    try:
        text = Path("/proc/vmstat").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), 0)


def say(sentence: str) -> None:
    """A sentence on standard error, unless that is gone."""
    # a rank that was killed may have left the cursor hidden
    shown = "\x1b[?25h" if sys.stderr.isatty() else ""
    _print(f"{shown}cotswold: {sentence}")


def _print(line: str) -> None:
    with suppress(OSError):  # a terminal that was closed must not end the ranks
        print(line, file=sys.stderr, flush=True)
