"""End a child process when its parent ends.

Knows: Linux's facilities. Does not know: what the process does.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def pdeathsig_setter() -> Callable[[], None] | None:
    """Return a function for a child to call first: Linux then kills the child when its parent ends.

    The parent creates it, because a child forked from a process with several threads can load no library.
    Linux regards the thread that forked as the parent. None on other systems.
    """
    if sys.platform != "linux":
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def bind() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return bind
