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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

_PR_SET_PDEATHSIG = 1


class Child:
    """A process that was started here, with four verbs: `start`, `code`, `send`, `end`; `how` says why.

    These are the verbs of whoever starts processes that may die; others will start them otherwise (from a
    fork server, on other hosts), and be watched in the same way.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        environ: Mapping[str, str],
        *,
        output: int | None = None,
        handed: Sequence[int] = (),
    ) -> Child:
        """Start a process in a session and a group of its own, so that no signal of the terminal reaches it.

        It prints to the descriptor ``output`` and reads nothing; without one it has this process's streams.
        It inherits the descriptors ``handed``. On Linux it is killed when this process ends, however that
        ends. Raises OSError where it cannot be started.
        """
        return cls(
            subprocess.Popen(
                command,
                env=environ,
                stdin=None if output is None else subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=handed,
                start_new_session=True,
                preexec_fn=_bound_to_parent(),
            )
        )

    @property
    def pid(self) -> int:
        """Its number, which is its group's as well."""
        return self._process.pid

    def code(self) -> int | None:
        """How it has ended: its exit code, or minus a signal's number; None while it runs.

        Its number stays its own. Where Python has no waitid (macOS before 3.13) the number is given back, and
        `end` leaves its group alone.
        """
        process = self._process
        if process.returncode is not None or not hasattr(os, "waitid"):
            return process.poll()
        found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def send(self, number: int) -> None:
        """Give a signal to the process alone, unless its number has been given back."""
        if self._process.returncode is None:
            os.kill(self._process.pid, number)

    def end(self) -> None:
        """Kill it and what it has started, also where it has ended by itself; then let its number go."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):  # macOS says the latter where all have ended
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def how(code: int) -> str:
    """What became of a process, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _bound_to_parent() -> Callable[[], None] | None:
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
