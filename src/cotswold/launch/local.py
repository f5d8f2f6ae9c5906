"""Several ranks on this host: starts them, passes signals on, tells which one died, starts anew.

Knows: processes, sessions, signals, exit codes. Does not know: torch, what the ranks do.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from cotswold.errors import UserError
from cotswold.launch import child, own_log
from cotswold.launch.logs import Logs
from cotswold.launch.process import is_stopped
from cotswold.launch.pulse import STOPPING
from cotswold.launch.world import LOOPBACK, World, settings_of

PROGRAM = (sys.executable, "-m", "cotswold.cli.main")
_POLL_SECONDS = 0.05
_TELL_SECONDS = 0.5
"""After a death, wait this long for others: rank 0 may say the same on the terminal."""
_GRACE_SECONDS = 8.0
"""After a death, the time in which the others find out by themselves."""
_TERM_SECONDS = 2.0
"""From SIGTERM to SIGKILL."""
_STOPPED = {128 + signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGHUP}
"""Exit codes of ranks that were asked to stop, and did."""


def run_local(
    words: Sequence[str],
    ranks: int,
    logs: Path,
    *,
    cores: int,
    restarts: int = 0,
    restart_words: Sequence[str] | None = None,
    program: Sequence[str] = PROGRAM,
    environ: Mapping[str, str] = os.environ,
) -> int:
    """Run ``program`` with ``words`` as ``ranks`` ranks on this host; returns the command's exit code.

    Rank 0 has the terminal; the others print into ``logs``/rank-K.log, inside a run's directory that may
    not be there yet, and the sentences of rank 0 are kept there, too. ``cores`` are divided among them.
    SIGINT, SIGTERM and SIGHUP are passed on to all once, whatever they do; a second one ends all. If one dies
    the others end, too: within _GRACE_SECONDS by themselves, or by SIGTERM and SIGKILL; if this process dies
    they are killed. Then all are started again with ``restart_words`` (by default the same words), at most
    ``restarts`` times, unless a signal has come.

    Exit code: 0 if all have finished, 130 or 143 if a signal stopped them, 2 for the user's mistake (never
    started again), otherwise 1.
    """
    with _received() as signals, Logs(logs) as kept:
        for start in range(restarts + 1):
            chosen = words if start == 0 or restart_words is None else restart_words
            crew = _Crew(_started([*program, *chosen], ranks, kept, cores, environ), kept, signals)
            try:
                code = crew.wait()
            finally:
                crew.kill()
            if code != 1 or signals or start == restarts:
                return code
            _say(f"starting all ranks again, {start + 1} of {restarts}")
    raise AssertionError("the last start returns")


@dataclass
class _Crew:
    """The ranks of one start, in their order."""

    processes: list[subprocess.Popen[bytes]]
    logs: Logs
    signals: list[int]
    _ended: dict[int, int] = field(default_factory=dict)
    """Exit codes, in the order in which ranks ended."""
    _killed: set[int] = field(default_factory=set)
    """Ranks that we had to kill."""
    _forwarded: bool = False
    _oom_kills: int = field(default_factory=lambda: _oom_kills())

    def wait(self) -> int:
        """Wait until all have ended, and see to it when one dies; returns the command's exit code."""
        failed_at: float | None = None
        told = termed = False
        while len(self._ended) < len(self.processes):
            time.sleep(_POLL_SECONDS)
            self.logs.settle()
            self._collect()
            if len(self.signals) > 1:
                self.kill()
                _say("left at once; nothing since the last checkpoint is kept")
                return 128 + self.signals[0]
            if self.signals and not self._forwarded:
                self._forwarded = True
                self._signal(self.signals[0])
            if not self._failed():
                continue
            failed_at = failed_at or time.monotonic()
            elapsed = time.monotonic() - failed_at
            if not told and elapsed > (_GRACE_SECONDS if self._culprit() is None else _TELL_SECONDS):
                told = True
                self._tell()
            if elapsed > _TELL_SECONDS:
                self._end_stopped()
            if not termed and elapsed > _GRACE_SECONDS:
                termed = True
                self._signal(signal.SIGTERM)
            if elapsed > _GRACE_SECONDS + _TERM_SECONDS:
                self._give_up()
        if not told:
            self._tell()
        return self._code()

    def kill(self) -> None:
        """End whatever is left, and what it has started."""
        for process in self.processes:
            child.end(process)

    def _collect(self) -> None:
        for rank, process in enumerate(self.processes):
            code = None if rank in self._ended else child.code_of(process)
            if code is not None:
                self._ended[rank] = code
                self.logs.foot(rank, f"{_now()} {child.how(code)}")

    def _failed(self) -> list[int]:
        """Ranks that ended as they should not, in that order; those that stopped when asked to did well."""
        return [
            rank
            for rank, code in self._ended.items()
            if code != 0 and not (self.signals and (code in _STOPPED or -code in self.signals))
        ]

    def _culprit(self) -> int | None:
        """The first rank that ended for its own reasons; None while there are only others to be seen.

        A rank that leaves because of another says so in its last words. Rank 0 speaks on the terminal, where
        its exit codes 1 and 2 need no explanation.
        """
        for rank in sorted(self._failed(), key=lambda rank: self._ended[rank] == 1):  # the telling ones first
            if rank in self._killed:
                continue
            if self._ended[rank] not in (1, 2):
                return rank
            lines = self.logs.tail(rank) if rank else []
            if lines and not lines[-1].endswith(STOPPING) and self._ended.get(0) != 2:
                return rank
        return None

    def _code(self) -> int:
        failed = self._failed()
        if not failed:
            return 128 + self.signals[0] if self.signals and any(self._ended.values()) else 0
        codes = [self._ended[rank] for rank in failed if rank not in self._killed]
        if self.signals and 2 not in codes:  # ranks that wait for one that has left end as if it had died
            return 128 + self.signals[0]
        return 2 if 2 in codes else codes[0] if codes[:1] and codes[0] in _STOPPED else 1

    def _tell(self) -> None:
        """Say which rank died, and of what."""
        rank = self._culprit()
        if rank is None:
            return
        code = self._ended[rank]
        sentence = f"rank {rank} {child.how(code)}"
        if code == -signal.SIGKILL:
            if _oom_kills() > self._oom_kills:
                sentence += ", by the kernel, for want of memory"
            else:
                sentence += " (if nobody did that, memory may have run out: see the kernel's log)"
        lines = self.logs.tail(rank) if rank else []
        _say(sentence + (f"; the last lines of {self.logs.where(rank)}:" if lines else ""))
        for line in lines:
            print(f"  {line}", file=sys.stderr, flush=True)

    def _end_stopped(self) -> None:
        """Kill ranks that are stopped: they cannot end by themselves."""
        for rank, process in enumerate(self.processes):
            if rank not in self._ended and is_stopped(process.pid):
                _say(f"rank {rank} stands still, stopped by a signal, and was killed")
                self._killed.add(rank)
                child.send(process, signal.SIGKILL)

    def _give_up(self) -> None:
        for rank, process in enumerate(self.processes):
            if child.code_of(process) is None:
                _say(f"rank {rank} did not end and was killed")
                self._killed.add(rank)
        self.kill()
        self._collect()

    def _signal(self, number: int) -> None:
        for process in self.processes:
            child.send(process, number)


def _started(
    command: Sequence[str], ranks: int, logs: Logs, cores: int, environ: Mapping[str, str]
) -> list[subprocess.Popen[bytes]]:
    """Start all ranks; rank 0 inherits the socket on which it will listen, so nobody can take the port."""
    processes: list[subprocess.Popen[bytes]] = []
    with socket.create_server((LOOPBACK, 0), backlog=4 * ranks) as listener:
        master = f"{LOOPBACK}:{listener.getsockname()[1]}"
        try:
            for rank in range(ranks):
                world = World(rank, ranks, rank, ranks, master, "cotswold")
                processes.append(_start(command, world, listener, logs, cores, environ))
        except OSError as error:
            for process in processes:
                child.end(process)
            raise UserError(
                f"{ranks} ranks cannot be started here ({error.strerror}); start fewer"
            ) from error
    return processes


def _start(
    command: Sequence[str],
    world: World,
    listener: socket.socket,
    logs: Logs,
    cores: int,
    environ: Mapping[str, str],
) -> subprocess.Popen[bytes]:
    variables = {
        **environ,
        **settings_of(world, cores, environ),
        "COTSWOLD_RANK": str(world.rank),
        "COTSWOLD_RANKS": str(world.size),
        "COTSWOLD_LOCAL_RANK": str(world.local_rank),
        "COTSWOLD_LOCAL_RANKS": str(world.local_size),
        "COTSWOLD_MASTER": world.master,
        "COTSWOLD_PARENT": str(os.getpid()),
    }
    first = world.rank == 0
    logs.head(world.rank, f"{_now()} rank {world.rank} of {world.size}: {shlex.join(command)}")
    log = logs.open(world.rank)
    if first:
        variables |= {"COTSWOLD_LISTENER": str(listener.fileno()), own_log.VARIABLE: own_log.handed(log)}
    try:
        return subprocess.Popen(
            command,
            env=variables,
            stdin=None if first else subprocess.DEVNULL,
            stdout=None if first else log,
            stderr=None if first else log,
            pass_fds=(listener.fileno(), log) if first else (),
            start_new_session=True,  # signals of the terminal reach this process alone, which passes them on
            preexec_fn=child.bound_to_parent(),
        )
    finally:
        os.close(log)


@contextmanager
def _received() -> Iterator[list[int]]:
    """The signals that ask to stop, as they come in.

    SIGHUP is never a second one, for it comes by itself when a terminal closes; where it was ignored it stays
    so.
    """
    signals: list[int] = []

    def receive(number: int, _: object) -> None:
        if not (signals and number == signal.SIGHUP):
            signals.append(number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, receive) for number in numbers}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _oom_kills() -> int:
    """Processes that the kernel has ended for want of memory since it started; 0 where it does not say."""
    try:
        text = Path("/proc/vmstat").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), 0)


def _now() -> str:
    return datetime.now().astimezone().isoformat(" ", "seconds")


def _say(sentence: str) -> None:
    # a rank that was killed may have left the cursor hidden
    shown = "\x1b[?25h" if sys.stderr.isatty() else ""
    print(f"{shown}cotswold: {sentence}", file=sys.stderr, flush=True)
