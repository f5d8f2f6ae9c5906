"""Create, enter and remove network namespaces, list their processes, start process namespaces.

Knows: the programs `ip` and `tc`, names in /run/netns, /proc. Does not know: addresses, links, programs.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from cotswold.errors import MachineError

PREFIX = "cotswold"
LISTED = Path("/run/netns")
_NAME = re.compile(rf"{PREFIX}-(\d+)-\d+-\w+")
_TIMEOUT_SECONDS = 30
_ENDING_SECONDS = 10.0
_CLONE_NEWNET, _CLONE_NEWPID = 0x40000000, 0x20000000


@contextmanager
def entered(namespace: Path) -> Iterator[None]:
    """Move this thread, and threads that it starts, to a network namespace for a `with` block."""
    with Path("/proc/thread-self/ns/net").open("rb") as before:
        with namespace.open("rb") as there:
            _call("setns", there.fileno(), _CLONE_NEWNET)
        try:
            yield
        finally:
            _call("setns", before.fileno(), _CLONE_NEWNET)


@contextmanager
def children_in(namespace: Path | None) -> Iterator[None]:
    """Start children of this thread in a process namespace for a `with` block; None creates a new one.

    The thread cannot start threads inside the block.
    """
    with Path("/proc/self/ns/pid").open("rb") as before:
        if namespace is None:
            _call("unshare", _CLONE_NEWPID)
        else:
            with namespace.open("rb") as there:
                _call("setns", there.fileno(), _CLONE_NEWPID)
        try:
            yield
        finally:
            _call("setns", before.fileno(), _CLONE_NEWPID)


def _call(name: str, *numbers: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)  # Python has os.setns and os.unshare since 3.12
    if getattr(libc, name)(*numbers):
        number = ctypes.get_errno()
        raise MachineError(f"cannot enter a namespace: {os.strerror(number)}; run as root")


def processes_in(namespace: Path) -> list[int]:
    """List the processes in a network namespace, except this one, which may have entered it."""
    there = namespace.stat()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):  # it has just ended
                its = (entry / "ns" / "net").stat()
                if (its.st_dev, its.st_ino) == (there.st_dev, there.st_ino):
                    found.append(int(entry.name))
    return sorted(found)


def end_processes(namespace: Path) -> None:
    """Kill all processes in a namespace; MachineError if one does not end."""
    deadline = time.monotonic() + _ENDING_SECONDS
    while left := processes_in(namespace):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise MachineError(f"processes {left} of a host do not end after SIGKILL")
        time.sleep(0.01)


def remove_leftovers() -> None:
    """Remove namespaces, and their processes, that killed processes have left behind."""
    if not LISTED.is_dir():
        return
    for entry in LISTED.iterdir():
        owner = _NAME.fullmatch(entry.name)
        if owner is not None and not Path(f"/proc/{owner[1]}").exists():
            with suppress(OSError):  # another process may remove it at the same moment
                end_processes(entry)
            subprocess.run(
                ["ip", "netns", "delete", entry.name],
                capture_output=True,
                timeout=_TIMEOUT_SECONDS,
                check=False,
            )


def require() -> None:
    """Raise MachineError if this user cannot create namespaces."""
    missing = [program for program in ("ip", "tc", "bridge") if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        raise MachineError(
            "hosts in network namespaces need root and the programs ip, tc and bridge (Debian's iproute2); "
            + (f"{' and '.join(missing)} cannot be found" if missing else "this user is not root")
        )


def ip(*words: str) -> str:
    """Run `ip` and return its output."""
    return run("ip", *words)


def batch(name: str, lines: Sequence[str]) -> None:
    """Run several commands of `ip` in one namespace."""
    run("ip", "-n", name, "-batch", "-", given="\n".join(lines) + "\n")


def run(*words: str, given: str = "") -> str:
    """Run a program and return its output; MachineError if it fails."""
    done = subprocess.run(
        words, input=given, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
    )
    if done.returncode:
        raise MachineError(
            f"cannot create hosts in network namespaces: '{' '.join(words)}' failed with "
            f"'{' '.join(done.stderr.split())}'; run as root on a Linux that has veth, bridge and tbf"
        )
    return done.stdout
