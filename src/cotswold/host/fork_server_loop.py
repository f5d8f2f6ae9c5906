"""Main loop of the process from which others are forked.

Knows: forks, signals, passed descriptors, exit codes. Does not know: the client (`fork_server`), what the
processes do.

It imports slow modules once (torch: seconds), then forks a process in some milliseconds. Requests arrive on a
socket as a length and JSON. Each start comes with two descriptors: on the first the loop reports the
process's number and, at its end, its exit code; the second receives the output. A process that has ended
keeps its number until the client releases it, so that a signal never hits another process. If the requests
end, the loop kills all processes; if the loop ends, Linux kills them.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from cotswold.errors import CotswoldError, describe_exception
from cotswold.host import stack_dump
from cotswold.host.parent_death import pdeathsig_setter
from cotswold.host.process_info import exit_code_of
from cotswold.host.processes import import_function

LENGTH = struct.Struct("=I")
THREADS = "OMP_NUM_THREADS"
_MESSAGE_BYTES_MAX = 4096
_FILES_OF_START = 2
NO_FILES = "the fork server has no open files left; allow more (ulimit -n)"


@dataclass
class _ForkedChild:
    """A child process that is not yet released."""

    status: int
    """Descriptor on which its number and its end are reported; -1 afterwards."""
    words: int
    """Descriptor from which its last message is read; -1 afterwards."""
    is_released: bool = False


class ForkServerLoop:
    """Serves the requests on ``control`` until they end."""

    def __init__(self, control: socket.socket, prepare: Callable[[], object]) -> None:
        self._control, self._prepare = control, prepare
        self._children: dict[int, _ForkedChild] = {}
        self._woken, self._wake = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._bind = pdeathsig_setter() or (lambda: None)
        self._import_error: str | None = None

    def run(self, modules: Iterable[str]) -> None:
        """Import ``modules``, then fork on request; return when the socket is closed."""
        for end in (self._woken, self._wake):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for module in modules:
                importlib.import_module(module)
        except Exception as error:
            self._import_error = f"the fork server cannot import its modules: {describe_exception(error)}"
        gc.collect()
        gc.freeze()  # a collection in a child process would write to, and so copy, all pages
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in self._selector.select()}
            if self._woken in ready:
                with suppress(BlockingIOError):
                    self._woken.recv(4096)
                self._collect_ended()
            if self._control in ready and not self._serve_request():
                break
        for pid in self._children:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def _serve_request(self) -> bool:
        """Serve one request; False if there are no more."""
        try:
            request, files = _receive(self._control)
        except (EOFError, ConnectionError):
            return False
        if "let_go" in request:
            self._release(request["let_go"])
        elif len(files) == _FILES_OF_START:
            self._start(request, *files)
        else:  # the kernel drops descriptors for which this process has no number left (MSG_CTRUNC)
            if files:  # without even the first descriptor the client sees only the end of the stream
                _report(files[0], error=NO_FILES)
            for file in files:
                os.close(file)
        return True

    def _start(self, request: dict[str, Any], status: int, output: int) -> None:
        try:
            if self._import_error is not None:
                raise ImportError(self._import_error)
            words, saying = os.pipe()
            try:
                pid = os.fork()
                if pid == 0:
                    self._run_child(request, status, output, saying, words)
            except OSError:
                os.close(words)
                raise
            finally:
                os.close(saying)
        except (OSError, ImportError) as error:
            _report(status, error=str(error))
            os.close(status)
            return
        finally:
            os.close(output)
        with suppress(OSError):  # the process has done it
            os.setpgid(pid, pid)
        self._children[pid] = _ForkedChild(status, words)

    def _run_child(
        self, request: dict[str, Any], status: int, output: int, saying: int, words: int
    ) -> NoReturn:
        """Body of the child process; it reports its number when it is ready for signals."""
        code = 1
        try:
            default_signals()
            os.setpgid(0, 0)
            self._bind()
            for end in (self._selector, self._control, self._woken, self._wake):
                end.close()
            others = (file for each in self._children.values() for file in (each.status, each.words))
            for file in (words, *others):
                if file >= 0:
                    os.close(file)
            _redirect_output(output)
            _report(status, pid=os.getpid())
            os.close(status)
            code = self._call(request, saying)
        finally:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):
                    stream.flush()
            os._exit(code)

    def _call(self, request: dict[str, Any], saying: int) -> int:
        """Call the function, report its exception, and return the exit code."""
        function = request["function"]
        try:
            self._prepare()
            os.environ.update(request["environ"])
            returned = import_function(function)(**request["arguments"])
            return returned if isinstance(returned, int) else 0
        except SystemExit as error:
            if error.code is None or isinstance(error.code, int):
                return error.code or 0
            words, code = str(error.code), 1
            print(words, file=sys.stderr)
        except CotswoldError as error:
            words, code = str(error), error.exit_code
            print(f"cotswold: {words}", file=sys.stderr)
        except BaseException as error:
            words, code = describe_exception(error, function.partition(":")[0]), 1
            traceback.print_exc()
        with suppress(OSError):
            os.set_blocking(saying, False)
            os.write(saying, words.encode(errors="replace")[:_MESSAGE_BYTES_MAX])
        return code

    def _collect_ended(self) -> None:
        """Report processes that have ended, and reap those that were released."""
        for pid, child in list(self._children.items()):
            if child.status >= 0:
                self._report_end(pid, child)
            if child.status < 0 and child.is_released:
                del self._children[pid]
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def _report_end(self, pid: int, child: _ForkedChild) -> None:
        code = exit_code_of(pid)
        if code is None:
            return
        os.set_blocking(child.words, False)
        said = b""
        with suppress(OSError):
            said = os.read(child.words, _MESSAGE_BYTES_MAX)
        _report(child.status, pid=pid, code=code, words=said.decode(errors="replace"))
        os.close(child.status)
        os.close(child.words)
        child.status = child.words = -1

    def _release(self, pid: int) -> None:
        if pid in self._children:
            self._children[pid].is_released = True
            self._collect_ended()


def send_request(control: socket.socket, body: bytes, files: Sequence[int] = ()) -> None:
    """Send a request in JSON to a fork server."""
    socket.send_fds(control, [LENGTH.pack(len(body))], files)
    control.sendall(body)


def default_signals() -> None:
    """Reset signal handlers as in a new process; signals that the user ignores (nohup) stay ignored."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def main(control: int, modules: Sequence[str], threads: str | None) -> None:
    """Run a fork server that was started as a program: see `fork_server`.

    It runs with one OpenMP thread; the processes that it forks see the user's value of the variable.
    """

    def prepare() -> None:
        os.environ.pop(THREADS, None)
        if threads is not None:
            os.environ[THREADS] = threads

    ForkServerLoop(socket.socket(fileno=control), prepare).run(modules)


def _receive(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    head, files, _, _ = socket.recv_fds(control, LENGTH.size, _FILES_OF_START)
    head += _receive_exactly(control, LENGTH.size - len(head))
    (length,) = LENGTH.unpack(head)
    return json.loads(_receive_exactly(control, length)), files


def _receive_exactly(control: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        piece = control.recv(min(count - len(found), 1 << 20))
        if not piece:
            raise EOFError
        found += piece
    return bytes(found)


def _report(status: int, **what: object) -> None:
    with suppress(OSError):  # the client has exited; the requests end as well
        os.write(status, json.dumps(what).encode() + b"\n")


def _redirect_output(output: int) -> None:
    """Redirect standard output and error to a descriptor, and standard input from the null device."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for file, stream in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(file, stream)
    os.close(nothing)
    os.close(output)
    faulthandler.enable(2)  # prints the stack if the process crashes
    stack_dump.dump_on_signal(2)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", buffering=1, errors="backslashreplace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
