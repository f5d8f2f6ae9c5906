"""Processes of this machine, told apart from any that ever had the same number.

Knows: /proc, signals. Does not know: ranks. Where there is no /proc (macOS) nobody is known, nobody killed.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

_BOOT, _NETWORK = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/net")
_STATE, _STARTED = 0, 19
"""Fields of /proc/PID/stat after the name."""


def identity() -> str:
    """This process: its host, its number, the moment of its start."""
    pid = os.getpid()
    fields = _fields(pid)
    return f"{_host()} {pid} {fields[_STARTED]}" if fields else ""


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


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped this process."""
    return _fields(pid)[_STATE : _STATE + 1] == ["T"]


def _host() -> str:
    """This machine since it was switched on; a network namespace counts as a host of its own."""
    return f"{_BOOT.read_text().strip()}:{_NETWORK.readlink()}"


def _fields(pid: int) -> list[str]:
    try:
        # the name, in brackets, may hold anything
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
