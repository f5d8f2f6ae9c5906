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

from cotswold.errors import CotswoldError, told
from cotswold.host import stack_dump as stacks
from cotswold.host.parent_death import bound_to_parent
from cotswold.host.process_info import exit_code_of
from cotswold.host.processes import function_of

LENGTH = struct.Struct("=I")
THREADS = "OMP_NUM_THREADS"
_WORDS_BYTES_MOST = 4096
_FILES_OF_START = 2
NO_FILES = "the fork server has no open files left; allow more (ulimit -n)"


@dataclass
class _Forked:
    """A forked process that is not yet released."""

    status: int
    """Descriptor on which its number and its end are reported; -1 afterwards."""
    words: int
    """Descriptor from which its last message is read; -1 afterwards."""
    is_let_go: bool = False


class ForkLoop:
    """Serves the requests on ``control`` until they end."""

    def __init__(self, control: socket.socket, prepare: Callable[[], object]) -> None:
        self._control, self._prepare = control, prepare
        self._forked: dict[int, _Forked] = {}
        self._woken, self._wake = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._bind = bound_to_parent() or (lambda: None)
        self._broken: str | None = None

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
            self._broken = f"the fork server cannot import its modules: {told(error)}"
        gc.collect()
        gc.freeze()  # a collection in a forked process would write to, and so copy, all pages
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in self._selector.select()}
            if self._woken in ready:
                with suppress(BlockingIOError):
                    self._woken.recv(4096)
                self._collect()
            if self._control in ready and not self._serve():
                break
        for pid in self._forked:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def _serve(self) -> bool:
        """Serve one request; False if there are no more."""
        try:
            request, files = _receive(self._control)
        except (EOFError, ConnectionError):
            return False
        if "let_go" in request:
            self._let_go(request["let_go"])
        elif len(files) == _FILES_OF_START:
            self._start(request, *files)
        else:  # the kernel drops descriptors for which this process has no number left (MSG_CTRUNC)
            if files:  # without even the first descriptor the client sees only the end of the stream
                _tell(files[0], error=NO_FILES)
            for file in files:
                os.close(file)
        return True

    def _start(self, request: dict[str, Any], status: int, output: int) -> None:
        try:
            if self._broken is not None:
                raise ImportError(self._broken)
            words, saying = os.pipe()
            try:
                pid = os.fork()
                if pid == 0:
                    self._become(request, status, output, saying, words)
            except OSError:
                os.close(words)
                raise
            finally:
                os.close(saying)
        except (OSError, ImportError) as error:
            _tell(status, error=str(error))
            os.close(status)
            return
        finally:
            os.close(output)
        with suppress(OSError):  # the process has done it
            os.setpgid(pid, pid)
        self._forked[pid] = _Forked(status, words)

    def _become(self, request: dict[str, Any], status: int, output: int, saying: int, words: int) -> NoReturn:
        """Body of the forked process; it reports its number when it is ready for signals."""
        code = 1
        try:
            default_signals()
            os.setpgid(0, 0)
            self._bind()
            for end in (self._selector, self._control, self._woken, self._wake):
                end.close()
            others = (file for each in self._forked.values() for file in (each.status, each.words))
            for file in (words, *others):
                if file >= 0:
                    os.close(file)
            _print_to(output)
            _tell(status, pid=os.getpid())
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
            returned = function_of(function)(**request["arguments"])
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
            words, code = told(error, function.partition(":")[0]), 1
            traceback.print_exc()
        with suppress(OSError):
            os.set_blocking(saying, False)
            os.write(saying, words.encode(errors="replace")[:_WORDS_BYTES_MOST])
        return code

    def _collect(self) -> None:
        """Report processes that have ended, and reap those that were released."""
        for pid, forked in list(self._forked.items()):
            if forked.status >= 0:
                self._tell_end(pid, forked)
            if forked.status < 0 and forked.is_let_go:
                del self._forked[pid]
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def _tell_end(self, pid: int, forked: _Forked) -> None:
        code = exit_code_of(pid)
        if code is None:
            return
        os.set_blocking(forked.words, False)
        said = b""
        with suppress(OSError):
            said = os.read(forked.words, _WORDS_BYTES_MOST)
        _tell(forked.status, pid=pid, code=code, words=said.decode(errors="replace"))
        os.close(forked.status)
        os.close(forked.words)
        forked.status = forked.words = -1

    def _let_go(self, pid: int) -> None:
        if pid in self._forked:
            self._forked[pid].is_let_go = True
            self._collect()


def send(control: socket.socket, body: bytes, files: Sequence[int] = ()) -> None:
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

    ForkLoop(socket.socket(fileno=control), prepare).run(modules)


def _receive(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    head, files, _, _ = socket.recv_fds(control, LENGTH.size, _FILES_OF_START)
    head += _exactly(control, LENGTH.size - len(head))
    (length,) = LENGTH.unpack(head)
    return json.loads(_exactly(control, length)), files


def _exactly(control: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        piece = control.recv(min(count - len(found), 1 << 20))
        if not piece:
            raise EOFError
        found += piece
    return bytes(found)


def _tell(status: int, **what: object) -> None:
    with suppress(OSError):  # the client has exited; the requests end as well
        os.write(status, json.dumps(what).encode() + b"\n")


def _print_to(output: int) -> None:
    """Redirect standard output and error to a descriptor, and standard input from the null device."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for file, stream in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(file, stream)
    os.close(nothing)
    os.close(output)
    faulthandler.enable(2)  # prints the stack if the process crashes
    stacks.answer_at(2)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", buffering=1, errors="backslashreplace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
