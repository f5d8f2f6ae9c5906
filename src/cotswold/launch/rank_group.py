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
from cotswold.host.processes import Process, exit_text
from cotswold.launch.logs import Logs
from cotswold.launch.signals import STOP_SIGNALS, SignalRequests, signals_to_forward

_POLL_SECONDS = 0.05
_REPORT_DELAY_SECONDS = 0.5
"""Seconds to wait after a death before reporting it: rank 0 may report it on the terminal itself."""
_GRACE_SECONDS = 8.0
"""Seconds that the other ranks have after a death to end by themselves."""
_TERM_SECONDS = 2.0
"""Seconds from SIGTERM to SIGKILL, and from a second signal to SIGKILL."""
_STOP_EXIT_CODES = {128 + number for number in STOP_SIGNALS}
"""Exit codes of ranks that stopped on request."""


@dataclass
class RankGroup:
    """The ranks of one start, in rank order."""

    processes: Sequence[Process]
    logs: Logs
    requests: SignalRequests
    _exit_codes: dict[int, int] = field(default_factory=dict)
    """Exit codes, in the order in which ranks ended."""
    _killed: set[int] = field(default_factory=set)
    """Ranks that this process killed."""
    _reported: bool = False
    """True once the reason of the end has been reported, by this process or by rank 0."""
    _sent_sigterm: bool = False
    _forwarded: int = 0
    """Number of signals passed on."""
    _failed_at: float | None = None
    _exit_requested_at: float | None = None
    """Time at which ranks were first asked to leave at once."""
    _oom_kills: int = field(default_factory=lambda: _oom_kills())

    def wait(self) -> int:
        """Wait until all ranks have ended, handle deaths, and return the command's exit code."""
        while len(self._exit_codes) < len(self.processes):
            time.sleep(_POLL_SECONDS)
            self.logs.move_into_run()
            self._collect_exit_codes()
            if self.requests.suspended:
                self.requests.suspended = False
                self._suspend()
            self._forward_signals()
            if self._exit_requested_at is None and self._failed_ranks():
                self._handle_death()
        if self._exit_requested_at is not None:
            self._report_immediate_exit()
        elif not self._reported:
            self._report_death()
        return self._exit_code()

    def kill(self) -> None:
        """Kill all remaining ranks and their children."""
        for process in self.processes:
            process.end()

    def _forward_signals(self) -> None:
        """Pass on the signals received; after a second signal, kill ranks that do not leave in time."""
        wanted = signals_to_forward(self.requests.received)
        for number in wanted[self._forwarded :]:
            self._signal(number)
        self._forwarded = len(wanted)
        if self._forwarded < 2:
            return
        self._exit_requested_at = self._exit_requested_at or time.monotonic()
        if time.monotonic() - self._exit_requested_at > _TERM_SECONDS:
            self._kill_remaining()

    def _handle_death(self) -> None:
        """Report which rank died first, and end ranks that do not end by themselves."""
        self._failed_at = self._failed_at or time.monotonic()
        elapsed = time.monotonic() - self._failed_at
        if not self._reported and elapsed > (
            _GRACE_SECONDS if self._first_failed_rank() is None else _REPORT_DELAY_SECONDS
        ):
            self._reported = True
            self._report_death()
        if elapsed > _REPORT_DELAY_SECONDS:
            self._kill_stopped()
        if not self._sent_sigterm and elapsed > _GRACE_SECONDS:
            self._sent_sigterm = True
            self._signal(signal.SIGTERM)
        if elapsed > _GRACE_SECONDS + _TERM_SECONDS:
            for rank in self._running_ranks():
                print_message(f"rank {rank} did not end; killed it")
            self._kill_remaining()

    def _suspend(self) -> None:
        """Stop all ranks, then this process, until it is resumed (the shell's Ctrl-Z and fg)."""
        store_host, *others = self.processes
        for process in others:
            process.send(signal.SIGSTOP)
        time.sleep(_POLL_SECONDS)  # the rank that hosts the store first answers requests of the others
        store_host.send(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._signal(signal.SIGCONT)

    def _collect_exit_codes(self) -> None:
        for rank, process in enumerate(self.processes):
            code = None if rank in self._exit_codes else process.code()
            if code is not None:
                self._exit_codes[rank] = code
                self.logs.log_end(rank, exit_text(code))

    def _failed_ranks(self) -> list[int]:
        """Return ranks that failed, in the order of their ends; stopping on request is no failure."""
        return [
            rank
            for rank, code in self._exit_codes.items()
            if code != 0
            and not (self.requests.received and (code in _STOP_EXIT_CODES or -code in STOP_SIGNALS))
        ]

    def _first_failed_rank(self) -> int | None:
        """Return the first rank that ended for its own reasons; None if there is no such rank yet.

        A rank that ends because of another has a special exit code. Rank 0 prints on the terminal, where its
        exit codes 1 and 2 need no explanation. If rank 0 reports a user's mistake, the other ranks made the
        same.
        """
        # the informative exit codes first
        for rank in sorted(self._failed_ranks(), key=lambda rank: self._exit_codes[rank] == 1):
            code = self._exit_codes[rank]
            if rank in self._killed or code == ANOTHER_RANK_EXIT:
                continue
            if code not in (1, 2) or (rank and self._exit_codes.get(0) != 2):
                return rank
        return None

    def _exit_code(self) -> int:
        failed, asked = self._failed_ranks(), self.requests.first
        codes = [self._exit_codes[rank] for rank in failed if rank not in self._killed]
        if asked is not None and 2 not in codes:
            # ranks that wait for a rank that left end as if it had died
            return 128 + asked if any(self._exit_codes.values()) else 0
        if not failed:
            return 0
        return 2 if 2 in codes else codes[0] if codes[:1] and codes[0] in _STOP_EXIT_CODES else 1

    def _report_death(self) -> None:
        """Report which rank died, and the reason."""
        rank = self._first_failed_rank()
        if rank is None:
            return
        code = self._exit_codes[rank]
        sentence = f"rank {rank} {exit_text(code)}"
        if code == -signal.SIGKILL:
            if _oom_kills() > self._oom_kills:
                sentence += ", by the kernel: out of memory"
            else:
                sentence += " (by another process, or for lack of memory: see the kernel's log)"
        lines = self.logs.tail(rank) if rank else []
        print_message(sentence + (f"; the last lines of {self.logs.describe_file(rank)}:" if lines else ""))
        for line in lines:
            _print_line(f"  {line}")

    def _report_immediate_exit(self) -> None:
        """Report that all ranks left at once, unless rank 0, which knows about its checkpoint, did."""
        if 0 in self._killed:
            print_message("left at once; progress since the last checkpoint is lost")
        elif self._exit_codes[0] < 0:
            print_message("left at once")

    def _kill_stopped(self) -> None:
        """Kill stopped ranks: they cannot end by themselves."""
        for rank, process in enumerate(self.processes):
            if rank not in self._exit_codes and is_stopped(process.pid):
                print_message(f"rank {rank} was stopped by a signal; killed it")
                self._killed.add(rank)
                process.send(signal.SIGKILL)

    def _running_ranks(self) -> list[int]:
        return [rank for rank, process in enumerate(self.processes) if process.code() is None]

    def _kill_remaining(self) -> None:
        self._killed.update(self._running_ranks())
        self.kill()
        self._collect_exit_codes()

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


def print_message(sentence: str) -> None:
    """Print a sentence on standard error; a closed terminal is ignored."""
    # A rank that was killed may have left the cursor hidden.
    shown = "\x1b[?25h" if sys.stderr.isatty() else ""
    _print_line(f"{shown}cotswold: {sentence}")


def _print_line(line: str) -> None:
    with suppress(OSError):  # a closed terminal must not end the ranks
        print(line, file=sys.stderr, flush=True)
