"""The number of files that this process may open.

Knows: the system's limit. Does not know: the files, sockets.
"""

from __future__ import annotations

import os
import resource

from cotswold.errors import MachineError

_DESCRIPTORS_MAX = 1 << 16
"""Maximum value to which the limit is raised."""
_PER_MEMBER = 6
"""Open files for each peer: four sockets, a monitor, and the pipe that reports its end."""
_PER_ENDPOINT = 18
"""Open files of an endpoint without peers, the fork server, and files read or written for a moment."""


def raise_descriptor_limit() -> int:
    """Raise the soft limit as far as possible; return the number of files that this process may open.

    Child processes inherit the limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS_MAX)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # macOS has a limit below an unlimited hard one
        return soft
    return wanted


def processes_of(descriptors: int) -> int:
    """Number of processes to which one with so many open files can connect."""
    return max(0, (descriptors - _PER_ENDPOINT) // _PER_MEMBER)


def can_open(count: int) -> bool:
    """True if this process can open ``count`` more files."""
    opened: list[int] = []
    try:
        for _ in range(count):
            opened.append(os.dup(opened[0]) if opened else os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return False
    finally:
        for each in opened:
            os.close(each)
    return True


def require_descriptors(members: int) -> None:
    """Raise this process's limit; MachineError if it is too low for connections to ``members`` processes.

    ZeroMQ ends a process that has no descriptor left, so call this before the others start.
    """
    most, wanted = raise_descriptor_limit(), _PER_ENDPOINT + _PER_MEMBER * members
    if not can_open(wanted):
        raise MachineError(
            f"{members} processes need {wanted} more open files in each that connects to all of them, and "
            f"this process may have {most} (ulimit -n): allow more, such as ulimit -n "
            f"{max(1024, 2 * wanted)}, or start fewer processes"
        )
