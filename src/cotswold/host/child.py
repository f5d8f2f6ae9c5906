"""Processes that this one has started, each the first of a group of its own, and how they end.

Knows: groups of processes, signals, exit codes, what Linux offers. Does not know: ranks.

A process that has ended keeps its number, and its group's, until its parent has asked for its exit code. So
the code is read without that, and a group gets its signals before: later the number may be a stranger's.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

_PR_SET_PDEATHSIG = 1


def code_of(process: subprocess.Popen[bytes]) -> int | None:
    """How a process has ended, as Popen.returncode has it; None while it runs. Its number stays its own.

    Where Python has no waitid (macOS before 3.13) the number is given back, and `end` leaves its group alone.
    """
    if process.returncode is not None or not hasattr(os, "waitid"):
        return process.poll()
    found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def send(process: subprocess.Popen[bytes], number: int) -> None:
    """Give a signal to the process alone, unless its number has been given back."""
    if process.returncode is None:
        os.kill(process.pid, number)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and what it has started, also where it has ended by itself; then let its number go."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):  # macOS says the latter where all have ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def how(code: int) -> str:
    """What became of a process, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def bound_to_parent() -> Callable[[], None] | None:
    """What a child does before it runs: asks Linux to be killed when its parent ends, however that ends.

    Elsewhere the heartbeat of the rank looks for its parent.
    """
    if sys.platform != "linux":
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def bind() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return bind
