"""Processes that this one has started, each the first of a group of its own, and how they end.

Knows: groups of processes, signals, exit codes, what Linux offers. Does not know: ranks.

A process that has ended keeps its number, and its group's, until its parent has asked for its exit code. So
the code is read without that, and a group gets its signals before: later the number may be a stranger's.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from cotswold.host.parent_death import bound_to_parent
from cotswold.host.process_info import exit_code_of
from cotswold.host.processes import how


class Child:
    """A process that was started here, with four verbs: `start`, `code`, `send`, `end`; `how` says why.

    The verbs are those of `Process`; others are forked (`fork_server`) or run on other machines.
    """

    def __init__(self, process: subprocess.Popen[bytes], name: str = "a process") -> None:
        self._process = process
        self.name = name
        self.machine = socket.gethostname()
        self._ending = -1

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        environ: Mapping[str, str],
        *,
        output: int | None = None,
        handed: Sequence[int] = (),
        name: str = "a process",
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
                preexec_fn=bound_to_parent(),
            ),
            name,
        )

    @property
    def pid(self) -> int:
        """Its number, which is its group's as well."""
        return self._process.pid

    def fileno(self) -> int:
        """Can be read once it has ended; made when it is asked for, at the latest before `end`."""
        if self._ending < 0:
            self._ending = _ending_of(self._process.pid)
        return self._ending

    def code(self) -> int | None:
        """How it has ended: its exit code, or minus a signal's number; None while it runs.

        Its number stays its own. Where Python has no waitid (macOS before 3.13) the number is given back, and
        `end` leaves its group alone.
        """
        process = self._process
        if process.returncode is not None or not hasattr(os, "waitid"):
            return process.poll()
        return exit_code_of(process.pid)

    def why(self) -> str:
        """Why it has ended, in words."""
        code = self.code()
        return "is running" if code is None else how(code)

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
        if self._ending >= 0:
            os.close(self._ending)
            self._ending = -1


def _ending_of(pid: int) -> int:
    """A descriptor that can be read once the process, whose number is still its own, has ended."""
    if sys.platform == "linux":
        return os.pidfd_open(pid)
    else:
        queue = select.kqueue()
        what = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
        queue.control([what], 0)
        return os.dup(queue.fileno())
