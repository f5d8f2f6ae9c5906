"""Processes of this machine, told apart from any that ever had the same number, and what this one has done.

Knows: /proc, signals, clocks of threads. Does not know: ranks. Where there is no /proc (macOS) nobody is
known, nobody killed.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cotswold.host.hang_detection import Seen

_BOOT, _NETWORK = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/net")
_PROC = Path("/proc")
_CHILDREN = "children"
"""Of a thread in /proc: the processes that it has started; some kernels leave it out."""
_STATE, _PARENT, _USER, _STARTED = 0, 1, 11, 19
"""Fields of /proc/PID/stat after the name."""


@dataclass(frozen=True)
class Usage:
    """What a thread has done so far: seconds of a core, blocks read from and written to disks."""

    core_seconds: float
    blocks: int


def identity() -> str:
    """This process: its host, its number, the moment of its start; "" where the system does not say."""
    pid = os.getpid()
    host, fields = _host(), _fields(pid)
    return f"{host} {pid} {fields[_STARTED]}" if host and fields else ""


def kill(who: str) -> None:
    """End a process by its identity, if it is on this host and still the same; also a stopped one."""
    if not who:
        return
    host, pid, started = who.split()
    fields = _fields(int(pid))
    if fields and _host() == host and fields[_STARTED] == started:
        try:
            os.kill(int(pid), signal.SIGKILL)
        except OSError:  # it has just ended, or is not ours
            return


def usage_of(thread: int) -> Callable[[], Usage]:
    """Reads what a thread of this process (that lives) and its child processes have computed, and the process
    read and written.

    Where threads have no clock (macOS) nobody is known to rest.
    """
    if not hasattr(time, "pthread_getcpuclockid"):
        return lambda: Usage(time.monotonic(), 0)
    clock, pid = time.pthread_getcpuclockid(thread), os.getpid()

    def read() -> Usage:
        used = resource.getrusage(resource.RUSAGE_SELF)
        seconds = time.clock_gettime(clock) + sum(map(_seconds, family(pid)[1:]))
        return Usage(seconds, used.ru_inblock + used.ru_oublock)

    return read


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped this process."""
    return letter_of(pid) == "T"


def letter_of(pid: int) -> str:
    """The letter of a process's state; empty for one that is no more."""
    return "".join(_fields(pid)[_STATE : _STATE + 1])


def family(pid: int) -> list[int]:
    """The process, and all that it, or they, have started and that run; parents come first."""
    is_listed = (_PROC / str(os.getpid()) / "task" / str(os.getpid()) / _CHILDREN).exists()
    children_of = _listed if is_listed else _by_parents()
    found = [pid]
    for each in found:  # which grows
        found += sorted(children_of(each))
    return found


def seen_of_descendants() -> dict[int, Seen]:
    """What is seen of all processes that this one has started, and that those have, by their numbers."""
    found = {}
    for pid in family(os.getpid())[1:]:
        if fields := _fields(pid):
            found[pid] = Seen(fields[_STATE], _seconds_in(fields), _wakes(Path(f"/proc/{pid}/task/{pid}")))
    return found


def seen_of_others(thread: int) -> Seen | None:
    """What is seen of all threads of this process but the one that asks; the state, and how often it woke up,
    is that of the ``thread`` of this number (its native one). None where the system does not say."""
    folder = Path(f"/proc/self/task/{thread}")
    fields = _text(folder / "stat").rpartition(")")[2].split()
    if not fields:
        return None
    return Seen(fields[_STATE], time.process_time() - time.thread_time(), _wakes(folder))


def exit_code_of(pid: int) -> int | None:
    """How a child of this process has ended: its exit code, or minus a signal's number; None while it runs.

    It keeps its number, except where Python has no waitid (macOS before 3.13).
    """
    if not hasattr(os, "waitid"):
        found, status = os.waitpid(pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if found else None
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _host() -> str:
    """This machine since it was switched on; a network namespace counts as a host of its own.

    "" where the system does not say: no /proc, or a sandbox that hides a part of it.
    """
    try:
        return f"{_BOOT.read_text().strip()}:{_NETWORK.readlink()}"
    except OSError:
        return ""


def _listed(pid: int) -> list[int]:
    """The children of a process, which the system lists."""
    tasks = (_PROC / str(pid) / "task").glob(f"*/{_CHILDREN}")
    return [int(child) for task in tasks for child in _text(task).split()]


def _by_parents() -> Callable[[int], list[int]]:
    """The same, found among all processes of the system by their parents' numbers, which takes longer."""
    children: dict[int, list[int]] = {}
    for folder in _PROC.glob("[0-9]*"):
        if fields := _fields(int(folder.name)):
            children.setdefault(int(fields[_PARENT]), []).append(int(folder.name))
    return lambda pid: children.get(pid, [])


def _seconds(pid: int) -> float:
    """Seconds of a core that a process has used."""
    return _seconds_in(_fields(pid))


def _wakes(thread: Path) -> int:
    """How often a thread, by its folder, has waited for something."""
    for line in _text(thread / "status").splitlines():
        if line.startswith("voluntary_ctxt_switches:"):
            return int(line.split()[1])
    return 0


def _seconds_in(fields: list[str]) -> float:
    return sum(map(int, fields[_USER : _USER + 2])) / os.sysconf("SC_CLK_TCK")


def _fields(pid: int) -> list[str]:
    # the name, in brackets, may hold anything
    return _text(_PROC / str(pid) / "stat").rpartition(")")[2].split()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # the process has ended
        return ""
