"""Identities of processes that survive reuse of their numbers, and their resource usage.

Knows: /proc, signals, clocks of threads. Does not know: ranks. Without /proc (macOS) no process has an
identity, and none is killed.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cotswold.host.hang_detection import ProcessActivity

_BOOT, _NETWORK = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/net")
_PROC = Path("/proc")
_CHILDREN = "children"
"""File of a thread in /proc that lists child processes; some kernels lack it."""
_STATE, _PARENT, _USER, _STARTED = 0, 1, 11, 19
"""Fields of /proc/PID/stat after the name."""


@dataclass(frozen=True)
class ResourceUsage:
    """Resource usage of a thread: seconds of CPU time, blocks read from and written to disks."""

    core_seconds: float
    blocks: int


def process_identity() -> str:
    """Identity of this process: host, number, time of its start; "" if the system does not say."""
    pid = os.getpid()
    host, fields = _host_identity(), _stat_fields(pid)
    return f"{host} {pid} {fields[_STARTED]}" if host and fields else ""


def kill_by_identity(identity: str) -> None:
    """Kill a process by its identity, also a stopped one, if it is on this host and still the same."""
    if not identity:
        return
    host, pid, started = identity.split()
    fields = _stat_fields(int(pid))
    if fields and _host_identity() == host and fields[_STARTED] == started:
        try:
            os.kill(int(pid), signal.SIGKILL)
        except OSError:  # it has just ended, or belongs to another user
            return


def usage_reader(thread: int) -> Callable[[], ResourceUsage]:
    """Return a function that reads the resource usage of a live thread of this process.

    It adds the CPU time of child processes, and all blocks that the process read and wrote. Where threads
    have no clock (macOS), every thread counts as busy.
    """
    if not hasattr(time, "pthread_getcpuclockid"):
        return lambda: ResourceUsage(time.monotonic(), 0)
    clock, pid = time.pthread_getcpuclockid(thread), os.getpid()

    def read() -> ResourceUsage:
        used = resource.getrusage(resource.RUSAGE_SELF)
        seconds = time.clock_gettime(clock) + sum(map(_cpu_seconds, process_tree(pid)[1:]))
        return ResourceUsage(seconds, used.ru_inblock + used.ru_oublock)

    return read


def is_stopped(pid: int) -> bool:
    """True if a signal has stopped this process."""
    return process_state(pid) == "T"


def process_state(pid: int) -> str:
    """Letter of a process's state; empty for a process that no longer exists."""
    return "".join(_stat_fields(pid)[_STATE : _STATE + 1])


def parent_of(pid: int) -> int:
    """Number of a process's parent; its own number for a process that no longer exists."""
    fields = _stat_fields(pid)
    return int(fields[_PARENT]) if fields else pid


def process_tree(pid: int) -> list[int]:
    """The process and all its running descendants; parents come first."""
    is_listed = (_PROC / str(os.getpid()) / "task" / str(os.getpid()) / _CHILDREN).exists()
    children_of = _children_listed if is_listed else _children_by_parents()
    found = [pid]
    for each in found:  # the list grows
        found += sorted(children_of(each))
    return found


@contextmanager
def await_descendants(pid: int, seconds: float) -> Iterator[None]:
    """Wait on exit until all processes that are descendants of ``pid`` on entry have ended.

    Killed with their parent, they otherwise end some time later, and hold their files until then. The wait is
    at most ``seconds``. Where processes have no descriptors (macOS) there is none.
    """
    if sys.platform != "linux":
        yield
        return
    with ExitStack() as opened:
        poll, running = select.poll(), set[int]()
        for each in process_tree(pid)[1:]:
            try:
                descriptor = os.pidfd_open(each)
            except OSError:  # it has just ended
                continue
            opened.callback(os.close, descriptor)
            poll.register(descriptor, select.POLLIN)
            running.add(descriptor)
        yield
        deadline = time.monotonic() + seconds
        while running and (left := deadline - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(1000 * left):
                poll.unregister(descriptor)
                running.remove(descriptor)


def descendant_activity() -> dict[int, ProcessActivity]:
    """Observations of all descendants of this process, by their numbers."""
    found = {}
    for pid in process_tree(os.getpid())[1:]:
        if fields := _stat_fields(pid):
            found[pid] = ProcessActivity(
                fields[_STATE], _parse_cpu_seconds(fields), _wakeups(Path(f"/proc/{pid}/task/{pid}"))
            )
    return found


def thread_activity(thread: int) -> ProcessActivity | None:
    """Observation of all threads of this process except the calling one; None if the system does not say.

    The state and the number of wake-ups are those of the thread with the native id ``thread``.
    """
    folder = Path(f"/proc/self/task/{thread}")
    fields = _text(folder / "stat").rpartition(")")[2].split()
    if not fields:
        return None
    return ProcessActivity(fields[_STATE], time.process_time() - time.thread_time(), _wakeups(folder))


def exit_code_of(pid: int) -> int | None:
    """Exit code of a child of this process, or minus a signal's number; None while it runs.

    The child keeps its number, except where Python has no waitid (macOS before 3.13).
    """
    if not hasattr(os, "waitid"):
        found, status = os.waitpid(pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if found else None
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _host_identity() -> str:
    """Identity of this machine since its boot; each network namespace counts as a separate host.

    "" if the system does not say: no /proc, or a sandbox that hides a part of it.
    """
    try:
        return f"{_BOOT.read_text().strip()}:{_NETWORK.readlink()}"
    except OSError:
        return ""


def _children_listed(pid: int) -> list[int]:
    """Children of a process, as the system lists them."""
    tasks = (_PROC / str(pid) / "task").glob(f"*/{_CHILDREN}")
    return [int(child) for task in tasks for child in _text(task).split()]


def _children_by_parents() -> Callable[[int], list[int]]:
    """Find children by the parents' numbers of all processes of the system, which takes longer."""
    children: dict[int, list[int]] = {}
    for folder in _PROC.glob("[0-9]*"):
        if fields := _stat_fields(int(folder.name)):
            children.setdefault(int(fields[_PARENT]), []).append(int(folder.name))
    return lambda pid: children.get(pid, [])


def _cpu_seconds(pid: int) -> float:
    """CPU seconds that a process has used."""
    return _parse_cpu_seconds(_stat_fields(pid))


def _wakeups(thread: Path) -> int:
    """Number of times that a thread, given by its folder, has waited."""
    for line in _text(thread / "status").splitlines():
        if line.startswith("voluntary_ctxt_switches:"):
            return int(line.split()[1])
    return 0


def _parse_cpu_seconds(fields: list[str]) -> float:
    return sum(map(int, fields[_USER : _USER + 2])) / os.sysconf("SC_CLK_TCK")


def _stat_fields(pid: int) -> list[str]:
    # the name, in brackets, may contain any character
    return _text(_PROC / str(pid) / "stat").rpartition(")")[2].split()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # the process has ended
        return ""
