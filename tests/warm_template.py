"""A process that has imported torch and Cotswold once, and from which interpreters of tests are forked.

Knows: what a new interpreter inherits, and how it begins and ends. Does not know: who asks, what is run.

A fork becomes what a new interpreter with the same words would be: same descriptors, folder, variables,
session, signals, limits, search path and `__main__`. It is a child of the process that asked.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import random
import resource
import runpy
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from cotswold.host.fork_server_loop import LENGTH, THREADS, send_request

MODULES = (
    "torch",
    "torch._dynamo",
    "torch.distributed.tensor",
    "torch.utils.flop_counter",
    "torch.utils.tensorboard",
    "cotswold.cli.main",
    "cotswold.cli.train",
    "cotswold.api.servers.parameter_client",
    "cotswold.api.train_recipe",
    "cotswold.api.servers.parameter_server",
    "cotswold.api.servers.data_server",
    "cotswold.api.servers.cluster_host",
    "cotswold.kernels.products.run",
    "cotswold.launch.rendezvous",
    "cotswold.recipe.toml",
    "cotswold.training.jobs.job",
    "cotswold.training.jobs.create",
    "cotswold.training.jobs.extend",
    "cotswold.training.strategies.build_stacks",
    "cotswold.training.strategies.build_supervised",
    "cotswold.training.full_batch.strategy",
    "cotswold.training.async_sgd.strategy",
    "cotswold.batch.runtime.worker_process",
    "cotswold.paramserver.runtime.server_process",
    "cotswold.replicas.replica_process",
    "cotswold.replication.runtime.server_process",
    "cotswold.replication.runtime.controller_process",
    "cotswold.dataservice.runtime.server_process",
)
"""Modules that the template imports before it forks."""
FILES_MOST = 250
NAME = "warm template"
"""Process name of a template of an interpreter, whose child it is."""
_HIGH = 150
"""The lowest descriptor of the template's own files in a fork."""
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def main(control: int, root: str) -> None:
    """Import the modules, then serve; a fork runs its program, and never returns."""
    search_path = list(sys.path)
    sys.path[:0] = [root]
    from tests import warm

    sys.path[:] = search_path
    warm.replace()
    for module in MODULES:
        importlib.import_module(module)
    sys.modules["PIL.Image"].init()
    gc.collect()
    gc.freeze()
    os.environ.clear()
    serve(socket.socket(fileno=control), search_path, warm.nest)


def serve(control: socket.socket, search_path: list[str], nest: Callable[[socket.socket], object]) -> None:
    """Fork an interpreter for each request on ``control``, until its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            request, files = receive(control)
        except (EOFError, ConnectionError):
            return
        said, saying = os.pipe()
        middle = os.fork()
        if middle == 0:
            middle = os.getpid()
            child = os.fork()
            if child:
                os.write(saying, str(child).encode())
                os._exit(0)
            os.close(said)
            os.close(saying)
            _become(request, files, control, middle, search_path, nest)
        os.close(saying)
        pid = int(os.read(said, 32) or b"0")
        os.close(said)
        os.waitpid(middle, 0)
        for file in files:
            os.close(file)
        send_request(control, json.dumps({"pid": pid}).encode())


def receive(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return one message with its descriptors; raises EOFError at the end."""
    head, files, _, _ = socket.recv_fds(control, LENGTH.size, FILES_MOST)
    if not head:
        raise EOFError
    (length,) = LENGTH.unpack(head)
    body = bytearray()
    while len(body) < length:
        piece = control.recv(length - len(body))
        if not piece:
            raise EOFError
        body += piece
    return json.loads(body), files


def _become(
    request: dict[str, Any],
    files: list[int],
    control: socket.socket,
    middle: int,
    search_path: list[str],
    nest: Callable[[socket.socket], object],
) -> NoReturn:
    """Act as the requested interpreter, from its start to its end."""
    code = 1
    try:
        control.close()
        _be_child_of(request, middle)
        high = max([_HIGH, *request["files"]]) + 1
        os.environ.update(request["environ"])
        if request["forks"]:
            _keep_template(files, high, search_path, nest)
        _take(files, request["files"], high)
        _inherit(request)
        code = _run(request, search_path)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _be_child_of(request: Mapping[str, Any], middle: int) -> None:
    """Wait until the requesting process is the parent."""
    while os.getppid() == middle:
        time.sleep(0.0005)
    if request["session"]:
        os.setsid()
    elif request["group"] >= 0:
        os.setpgid(0, request["group"])
    if request["bound"]:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != request["parent"]:
        os._exit(1)


def _keep_template(
    files: list[int], high: int, search_path: list[str], nest: Callable[[socket.socket], object]
) -> None:
    """Fork the template of this interpreter's own children."""
    mine, theirs = socket.socketpair()
    parent = os.getpid()
    if os.fork() == 0:
        try:
            prctl = ctypes.CDLL(None).prctl
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            prctl(_PR_SET_NAME, NAME.encode())
            mine.close()
            for file in files:
                os.close(file)
            os.environ.clear()
            if os.getppid() == parent:
                serve(theirs, search_path, nest)
        finally:
            os._exit(0)
    theirs.close()
    nest(socket.socket(fileno=fcntl.fcntl(mine.fileno(), fcntl.F_DUPFD_CLOEXEC, high)))
    mine.close()


def _take(files: list[int], targets: list[int], high: int) -> None:
    """Move each of ``files`` to its target."""
    moved = []
    for file in files:
        moved.append(fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, high))
        os.close(file)
    for file, target in zip(moved, targets, strict=True):
        os.dup2(file, target)
        os.close(file)


def _inherit(request: Mapping[str, Any]) -> None:
    """Take over the folder, variables, signals, limits and cores of the requesting process."""
    os.chdir(request["folder"])
    os.umask(request["umask"])
    os.sched_setaffinity(0, request["cores"])
    for limit, values in request["limits"].items():
        resource.setrlimit(int(limit), tuple(values))
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    if signal.SIGINT not in request["ignored"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])


def _run(request: Mapping[str, Any], search_path: list[str]) -> int:
    """Run the program to its end, like an interpreter; return its exit code."""
    _begin(request, search_path)
    spaces = sys.modules["__main__"].__dict__
    code = 0
    try:
        kind, program = request["kind"], request["program"]
        if kind == "-m":
            if not hasattr(sys.modules.get(program), "__path__"):
                sys.modules.pop(program, None)
            runpy._run_module_as_main(program)  # type: ignore[attr-defined]  # what -m itself calls
        elif kind == "-c":
            exec(compile(program, "<string>", "exec"), spaces)
        else:
            spaces.update(__file__=program, __cached__=None)
            exec(compile(Path(program).read_bytes(), program, "exec"), spaces)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            code = error.code or 0
        else:
            print(error.code, file=sys.stderr)
            code = 1
    except BaseException as error:
        code = 1
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_globals is not spaces:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        if isinstance(error, KeyboardInterrupt):
            code = -signal.SIGINT
    return _finish(code)


def _begin(request: Mapping[str, Any], search_path: list[str]) -> None:
    environ, kind = request["environ"], request["kind"]
    sys.argv[:] = request["argv"]
    sys.orig_argv[:] = request["words"]
    first = {"-m": str(Path.cwd()), "-c": ""}.get(kind, str(Path(request["program"]).resolve().parent))
    own = [] if request["safe_path"] else [first]
    sys.path[:] = [*own, *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep)), *search_path]
    importlib.invalidate_caches()
    # the interpreter knows this module as its main one
    main_module = types.ModuleType("__main__")
    main_module.__dict__.update(__builtins__=__builtins__, __annotations__={})
    sys.modules["__main__"] = main_module
    unbuffered = bool(environ.get("PYTHONUNBUFFERED"))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        before = getattr(sys, f"__{name}__")
        mode = "w" if number else "r"
        stream = open(number, mode, -1, before.encoding, before.errors, closefd=False)  # noqa: SIM115
        by_line = (number == 2 or os.isatty(number)) and not unbuffered
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(line_buffering=by_line, write_through=unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    tempfile.tempdir = None
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    threads = int(environ.get(THREADS) or len(os.sched_getaffinity(0)))
    if threads != 1:
        sys.modules["torch"].set_num_threads(threads)


def _finish(code: int) -> int:
    """End like an interpreter: wait for threads, call registered functions, flush output."""
    threading._shutdown()  # type: ignore[attr-defined]  # what an interpreter calls
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except (OSError, ValueError):
            code = 120
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return code & 0xFF
