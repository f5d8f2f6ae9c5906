"""A process that ends when its parent ends, however that ends.

Knows: what Linux offers. Does not know: what the process does.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def bound_to_parent() -> Callable[[], None] | None:
    """What a child of this process does first: it asks Linux to be killed when its parent ends.

    Made by the parent, for a child that was forked from several threads can load no library. To Linux the
    thread is the parent that has made the child. None on other systems.
    """
    if sys.platform != "linux":
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def bind() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return bind
