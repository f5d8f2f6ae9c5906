"""Processes of this host that are forked from one that has imported torch, and start in milliseconds.

Knows: how to start, call and end a fork server; descriptors that report an end. Does not know: what processes
do, torch.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from cotswold.errors import MachineError, UserError
from cotswold.files import disk_errors, open_file
from cotswold.host.child_process import Child
from cotswold.host.cores import granted_cores
from cotswold.host.fork_server_loop import NO_FILES, THREADS, send_request
from cotswold.host.processes import LOST, Call, exit_text
from cotswold.host.self_fork import SelfFork

START_SECONDS = 120.0
"""Maximum seconds of a start; the first start waits for the imports."""
END_SECONDS = 10.0
"""Maximum seconds to wait for the end of a killed process."""
_STATUS_BYTES = 1 << 16
_PROGRAM = (
    "import json, sys; control, path, modules, threads = json.loads(sys.argv[1]); sys.path[:] = path; "
    "from cotswold.host.fork_server_loop import main; main(control, modules, threads)"
)


class ForkServer:
    """Starts processes on this host by forking one that has imported ``modules``; implements `Processes`.

    The server starts at once and imports in the background; the first start waits for it. All processes end
    when this process ends; on Linux also when the thread that created this object ends. A function may do
    anything except share this process's memory: it runs in another process.
    """

    def __init__(self, modules: Iterable[str] = ("torch",), environ: Mapping[str, str] = os.environ) -> None:
        """Start the server with the environment ``environ``, which its processes inherit.

        torch computes there with one thread unless changed: the server must have no other threads, because a
        fork loses them. Raises MachineError if the host cannot start a process.
        """
        control, theirs = socket.socketpair()
        with theirs:
            given = json.dumps([theirs.fileno(), sys.path, list(modules), environ.get(THREADS)])
            words, alone = [sys.executable, "-P", "-c", _PROGRAM, given], {**environ, THREADS: "1"}
            with _start_errors(control):
                self._attach(control, Child.start(words, alone, handed=[theirs.fileno()]))

    @classmethod
    def of_this_process(
        cls, given: Mapping[str, object], prepare: Callable[[], object] = lambda: None
    ) -> ForkServer:
        """Fork this process as a server; its processes find ``given`` with `inherited`.

        They see the state of this moment. Each process calls ``prepare`` first. Functions may be in the main
        program (``"__main__:function"``). Create the server early: a fork lacks the threads of this process
        and its libraries, and keeps its open connections. Linux only; raises UserError on other systems.
        """
        if sys.platform != "linux":
            raise UserError(
                "sharing a program's own objects with other processes needs Linux; name a function that "
                "creates them, 'module:function'"
            )
        server = cls.__new__(cls)
        control, theirs = socket.socketpair()
        with theirs, _start_errors(control):
            server._attach(control, SelfFork(theirs, control, prepare, given))
        return server

    def _attach(self, control: socket.socket, server: Child | SelfFork) -> None:
        control.settimeout(START_SECONDS)
        self._control, self._server = control, server
        self._processes: list[ForkedProcess] = []

    @property
    def pid(self) -> int:
        """Number of the server process."""
        return self._server.pid

    def machines(self) -> Mapping[str, int]:
        """This host, and the number of cores that it grants to this process."""
        return {socket.gethostname(): granted_cores(environ={})}

    def start(self, call: Call, machine: str | None = None) -> ForkedProcess:
        """Start a process and return when it runs. Raises errors as `Processes.start`."""
        host = socket.gethostname()
        if machine not in (None, host):
            raise UserError(f"{call.name} is to run on {machine}, but the only machine is {host}")
        self._processes = [each for each in self._processes if not each.is_released]
        words = call.to_json().encode()
        with _open_output(call) as output:
            status, theirs = os.pipe()
            try:
                self._request(words, [theirs, output])
            except MachineError:
                os.close(status)
                raise
            finally:
                os.close(theirs)
        process = ForkedProcess(call, host, status, self)
        process.await_start()
        self._processes.append(process)
        return process

    def close(self) -> None:
        """End all processes and the server."""
        for each in self._processes:
            each.end()
        self._control.close()
        self._server.end()

    def code(self) -> int | None:
        """Exit code of the server; None while it runs."""
        return self._server.code()

    def release(self, pid: int) -> None:
        """Release the number of a killed process."""
        with suppress(MachineError):  # the server has ended, and its numbers are free
            self._request(json.dumps({"let_go": pid}).encode())

    def _request(self, words: bytes, files: Sequence[int] = ()) -> None:
        try:
            send_request(self._control, words, files)
        except OSError as error:
            raise MachineError(f"the fork server has ended ({error.strerror}); start again") from error


@contextmanager
def _start_errors(control: socket.socket) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        control.close()
        raise MachineError(f"cannot start a process on this host: {error.strerror}; end others") from error


@contextmanager
def _open_output(call: Call) -> Iterator[int]:
    """Open a descriptor that appends to the output file of a process."""
    if call.output is None:
        yield 2
        return
    with disk_errors(call.output, MachineError):
        output = open_file(call.output, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        yield output
    finally:
        os.close(output)


class ForkedProcess:
    """A process that a fork server has started; implements `Process`."""

    def __init__(self, call: Call, machine: str, status: int, server: ForkServer) -> None:
        self.name, self.machine = call.name, machine
        self.pid = 0
        self.is_released = False
        self._status, self._server = status, server
        os.set_blocking(status, False)
        self._buffer = b""
        self._code: int | None = None
        self._why = "is running"

    def await_start(self) -> None:
        """Wait until the process runs."""
        deadline = time.monotonic() + START_SECONDS
        while self.pid == 0:
            self._wait(deadline)
            self._read()
            if self.pid == 0 and (self._code is not None or time.monotonic() > deadline):
                os.close(self._status)
                why = self._why if self._code is not None else "the fork server does not answer"
                raise MachineError(f"{self.name} cannot be started: {why}")

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the process has ended."""
        return self._status

    def code(self) -> int | None:
        """Return the exit code, or minus a signal's number; None while the process runs."""
        if self._code is None:
            self._read()
        return self._code

    def why(self) -> str:
        """Describe why the process has ended."""
        self.code()
        return self._why

    def send(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.code() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def end(self) -> None:
        """Kill the process and its children, then release it."""
        if self.is_released:
            return
        if self._server.code() is None:  # otherwise the number may belong to another process
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        deadline = time.monotonic() + END_SECONDS
        while self.code() is None and time.monotonic() < deadline:
            self._wait(deadline)
        if self._code is None:
            self._code, self._why = -signal.SIGKILL, "was killed, and has not ended yet"
        self.is_released = True
        self._server.release(self.pid)
        os.close(self._status)
        self._status = -1

    def _wait(self, deadline: float) -> None:
        poll = select.poll()  # a selector would need a descriptor, and none may be left
        poll.register(self._status, select.POLLIN)
        poll.poll(1000 * max(deadline - time.monotonic(), 0))

    def _read(self) -> None:
        """Read the server's reports."""
        if self._status < 0:
            return
        try:
            said = os.read(self._status, _STATUS_BYTES)
        except BlockingIOError:
            return
        if not said:
            self._handle_lost_server()
        *lines, self._buffer = (self._buffer + said).split(b"\n")
        for line in lines:
            told = json.loads(line)
            self.pid = told.get("pid", 0)
            if "error" in told:
                self._code, self._why = 1, told["error"]
            elif "code" in told:
                self._await_close()
                self._code = told["code"]
                self._why = exit_text(told["code"]) + (f": {told['words']}" if told["words"] else "")

    def _await_close(self) -> None:
        """Wait until the server closes the pipe; from then on selectors always report the end."""
        self._wait(time.monotonic() + END_SECONDS)

    def _handle_lost_server(self) -> None:
        if self._code is None:
            code = self._server.code()
            if self.pid == 0 and code is None:
                self._code, self._why = 1, NO_FILES
                return
            end = "ended" if code is None else exit_text(code)
            if sys.platform == "linux":
                self._code, self._why = -signal.SIGKILL, f"was killed with the fork server, which {end}"
            else:  # only Linux kills the process then
                self._code, self._why = LOST, f"was lost with the fork server, which {end}"
