"""Open files: how many this process may have, and whether there is room for more.

Knows: the limit of the system. Does not know: what the files are, sockets.
"""

from __future__ import annotations

import os
import resource

from cotswold.errors import MachineError

_MOST = 1 << 16
"""The highest limit that is set."""
_PER_MEMBER = 6
"""Open files for each peer: four sockets, a monitor, and the pipe that tells its end."""
_OF_ENDPOINT = 18
"""Open files of an endpoint without peers, the fork server, and files read or written for a moment."""


def allow_descriptors() -> int:
    """Raise the soft limit as far as the system lets this process; returns how many files it may have open.

    What it starts inherits the limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _MOST if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # macOS has a limit below an unlimited hard one
        return soft
    return wanted


def can_open(count: int) -> bool:
    """Whether this process can open so many files more."""
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
    """Raise the limit of this process, and MachineError where it is too low to speak with so many others.

    ZeroMQ ends a process that has no descriptor left, so this comes before the others are started.
    """
    most, wanted = allow_descriptors(), _OF_ENDPOINT + _PER_MEMBER * members
    if not can_open(wanted):
        raise MachineError(
            f"{members} processes need {wanted} open files more in each that speaks with all of them, and "
            f"this process may have {most} (ulimit -n): allow more, such as ulimit -n "
            f"{max(1024, 2 * wanted)}, or start fewer processes"
        )
