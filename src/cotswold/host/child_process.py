"""Child processes of this one, each the leader of a new process group, and how they end.

Knows: process groups, signals, exit codes, Linux's facilities. Does not know: ranks.

A process that has ended keeps its number, and its group's, until its parent reaps it. So `code` reads the
exit code without reaping, and `end` signals the group first: afterwards the number may belong to another
process.
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

from cotswold.host.parent_death import pdeathsig_setter
from cotswold.host.process_info import exit_code_of
from cotswold.host.processes import exit_text


class Child:
    """A child process with four methods: `start`, `code`, `send`, `end`; `why` describes its end.

    They are the methods of `Process`; other implementations fork (`fork_server`) or run on other machines.
    """

    def __init__(self, process: subprocess.Popen[bytes], name: str = "a process") -> None:
        self._process = process
        self.name = name
        self.machine = socket.gethostname()
        self._end_descriptor = -1

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
        """Start a process in a new session and process group, which signals of the terminal do not reach.

        It prints to the descriptor ``output`` and has no input; without ``output`` it inherits this process's
        streams. It inherits the descriptors ``handed``. On Linux the kernel kills it when this process ends.
        Raises OSError if it cannot be started.
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
                preexec_fn=pdeathsig_setter(),
            ),
            name,
        )

    @property
    def pid(self) -> int:
        """Number of the process and of its group."""
        return self._process.pid

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the process has ended; call it before `end`."""
        if self._end_descriptor < 0:
            self._end_descriptor = _open_end_descriptor(self._process.pid)
        return self._end_descriptor

    def code(self) -> int | None:
        """Return the exit code, or minus a signal's number; None while the process runs.

        The process keeps its number. Where Python has no waitid (macOS before 3.13) this reaps the process,
        and `end` leaves its group alone.
        """
        process = self._process
        if process.returncode is not None or not hasattr(os, "waitid"):
            return process.poll()
        return exit_code_of(process.pid)

    def why(self) -> str:
        """Describe why the process has ended."""
        code = self.code()
        return "is running" if code is None else exit_text(code)

    def send(self, number: int) -> None:
        """Send a signal to the process alone, unless it has been reaped."""
        if self._process.returncode is None:
            os.kill(self._process.pid, number)

    def end(self) -> None:
        """Kill the process and its children, also if it has ended by itself; then reap it."""
        if self._process.returncode is None:
            # macOS raises PermissionError if all have ended
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._end_descriptor >= 0:
            os.close(self._end_descriptor)
            self._end_descriptor = -1


def _open_end_descriptor(pid: int) -> int:
    """Return a descriptor that becomes readable when a process that is not yet reaped has ended."""
    if sys.platform == "linux":
        return os.pidfd_open(pid)
    else:
        queue = select.kqueue()
        what = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
        queue.control([what], 0)
        return os.dup(queue.fileno())
