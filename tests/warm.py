"""Interpreters for tests, forked from one process per pytest worker that has imported torch once.

A new interpreter that imports torch and Cotswold takes some three seconds of processor time. Hundreds of
tests start one: fork servers, ranks, commands. Here each is forked from a *template* (`warm_template`) within
milliseconds. `subprocess.Popen` and `multiprocessing` ask the template, on Linux alone.

Forked are Cotswold's command, its fork servers, processes of `multiprocessing`, and programs whose words
begin with `PYTHON`. Every other program is a new process. So is an interpreter whose variables, search path
or thread a fork cannot take over, and every one under the fixture `cold_interpreters`.

Knows: which words start an interpreter, what it inherits. Does not know: what is tested.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import util
from pathlib import Path
from typing import Any

from tests.warm_template import FILES_MOST, receive

from cotswold.host import fork_server
from cotswold.host.fork_server_loop import THREADS, send_request
from cotswold.host.parent_death import pdeathsig_setter

ROOT = Path(__file__).parents[1]
PYTHON = (sys.executable, "-X", "warm")
"""First words of a program that may be forked from the template; a new interpreter ignores the option."""
_COMMAND = str(Path(sys.executable).with_name("cotswold"))
_MODULES = ("cotswold", "cotswold.cli.main")
_OF_MULTIPROCESSING = ("from multiprocessing.spawn ", "from multiprocessing.forkserver ")
_TEMPLATE = (
    "import sys; control, root = sys.argv[1:]; sys.path[:0] = [root]; from tests import warm_template; "
)
_TEMPLATE += "del sys.path[0]; warm_template.main(int(control), root)"
_READ_AT_START = ("HOME", "LANG", "LC_", "LD_", "MALLOC_", "MPL", "PYTHON", "TORCH", "TZ")
"""Prefixes of variables that an interpreter, or a library that it loads, reads once.

Numbers of threads are no such ones: `OMP_NUM_THREADS` is taken over, and a fork server has one thread anyway.
"""
# Ray sets PYTHONBREAKPOINT in its process, and Python reads it when breakpoint() is called
_TAKEN_OVER = (
    "PYTHONBREAKPOINT",
    "PYTHONPATH",
    "TORCH_CPP_LOG_LEVEL",
    "TORCHELASTIC_",
    "TORCHINDUCTOR_",
    "TORCH_NCCL_",
)
_START_SECONDS = 120.0
_PR_SET_CHILD_SUBREAPER = 36
_LIMITS = [value for name, value in vars(resource).items() if name.startswith("RLIMIT_")]
_cold_child = subprocess.Popen._execute_child  # type: ignore[attr-defined]  # what is replaced
_cold_spawn: Callable[..., int] = util.spawnv_passfds
_SIGNATURE = inspect.signature(_cold_child)

is_cold = False
"""True to start every interpreter as a new process."""


@dataclass(frozen=True)
class Program:
    """The program of an interpreter."""

    kind: str
    """``"-m"``, ``"-c"``, or ``""`` for a file."""
    program: str
    argv: list[str]
    safe_path: bool
    forks: bool
    """True if the interpreter gets its own template, for the interpreters that it starts."""


def program_of(words: Sequence[str], environ: Mapping[str, str]) -> Program | None:
    """Return the program of a command line that may be forked, or None for a new process."""
    is_rank = "COTSWOLD_RANK" in environ
    if words[0] == _COMMAND:
        return Program("", _COMMAND, list(words), False, not is_rank)
    if words[0] != sys.executable:
        return None
    rest, safe_path, warm = list(words[1:]), False, False
    while rest and rest[0] in ("-P", "-B", "-X"):
        option = rest.pop(0)
        safe_path |= option == "-P"
        if option == "-X":
            if rest.pop(0) != "warm":
                return None
            warm = True
    if rest[:1] == ["-m"] and (warm or rest[1] in _MODULES):
        return Program("-m", rest[1], ["-m", *rest[2:]], safe_path, not is_rank)
    if rest[:1] == ["-c"] and (warm or _is_known(rest)):
        return Program("-c", rest[1], ["-c", *rest[2:]], safe_path, warm and not is_rank)
    if rest and warm and not rest[0].startswith("-"):
        return Program("", rest[0], rest, safe_path, not is_rank)
    return None


def _is_known(words: Sequence[str]) -> bool:
    """True for a fork server of torch's or this package's, or of multiprocessing."""
    if words[1] == fork_server._PROGRAM:
        return any(each.partition(".")[0] in ("torch", "cotswold") for each in json.loads(words[2])[2])
    return words[1].startswith(_OF_MULTIPROCESSING)


class Template:
    """The process from which this one's interpreters are forked; they are children of this one."""

    def __init__(self, control: socket.socket, environ: Mapping[str, str]) -> None:
        self._control, self._environ = control, dict(environ)
        self._control.settimeout(_START_SECONDS)
        self._owner, self._namespaces = os.getpid(), _namespaces()
        self._prctl = ctypes.CDLL(None).prctl
        self._lock = threading.Lock()

    @property
    def is_mine(self) -> bool:
        """False in a fork of the owner, and after the template has exited."""
        return self._owner == os.getpid() and self._control.fileno() >= 0

    def close(self) -> None:
        """Stop asking the template."""
        self._control.close()

    def is_alike(self, environ: Mapping[str, str]) -> bool:
        """True if all variables that an interpreter reads once, and its namespaces, are the same."""
        if self._namespaces != _namespaces():
            return False
        for name in {*environ, *self._environ}:
            is_read = name.startswith(_READ_AT_START) and not name.startswith(_TAKEN_OVER)
            if is_read and environ.get(name) != self._environ.get(name):
                return False
        # another place may hide, or add, what the template has imported
        usual = {*self._environ.get("PYTHONPATH", "").split(os.pathsep), *sys.path, *map(str, _PLACES)}
        return usual.issuperset(environ.get("PYTHONPATH", "").split(os.pathsep))

    def fork(
        self,
        program: Program,
        words: Sequence[str],
        environ: Mapping[str, str],
        files: Mapping[int, int],
        **how: Any,
    ) -> int | None:
        """Return the process id of a new child of this process, or None without a template.

        It has our ``files`` at their numbers in the child.
        """
        request = {
            "kind": program.kind,
            "program": program.program,
            "argv": program.argv,
            "safe_path": program.safe_path,
            "forks": program.forks,
            "words": list(words),
            "environ": dict(environ),
            "files": list(files),
            "parent": os.getpid(),
            "ignored": [n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN],
            "blocked": list(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            "limits": {limit: resource.getrlimit(limit) for limit in _LIMITS},
            "cores": list(os.sched_getaffinity(0)),
            **how,
        }
        with self._lock:
            # orphans below this process become its children, so the fork does
            self._prctl(_PR_SET_CHILD_SUBREAPER, 1)
            try:
                send_request(self._control, json.dumps(request).encode(), list(files.values()))
                pid: int = receive(self._control)[0]["pid"]
            except (OSError, EOFError):
                self.close()
                return None
            finally:
                self._prctl(_PR_SET_CHILD_SUBREAPER, 0)
        return pid or None


def _namespaces() -> list[str]:
    """Return the namespaces of a child of this thread."""
    kinds = ("net", "mnt", "pid_for_children")
    return [str(Path(f"/proc/thread-self/ns/{kind}").readlink()) for kind in kinds]


_PLACES = ("", ROOT, ROOT / "src", ROOT / "benchmarks")
_template: Template | None = None
_may_start = False


def ready() -> Template | None:
    """Return the template of this process, started if this process may have one."""
    global _template
    if _template is not None and _template.is_mine:
        return _template
    if not _may_start or threading.current_thread() is not threading.main_thread():
        return None
    mine, theirs = socket.socketpair()
    environ = {**os.environ, THREADS: "1", "TORCH_CPP_LOG_LEVEL": "FATAL"}
    environ.pop("PYTHONPATH", None)
    words = [sys.executable, "-P", "-c", _TEMPLATE, str(theirs.fileno()), str(ROOT)]
    with theirs:
        _processes.append(
            subprocess.Popen(
                words,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                preexec_fn=pdeathsig_setter(),
            )
        )
    _template = Template(mine, os.environ)
    return _template


_processes: list[subprocess.Popen[bytes]] = []


def nest(control: socket.socket) -> None:
    """Let a forked interpreter use ``control`` for its own children."""
    global _template
    _template = Template(control, os.environ)


def replace() -> None:
    """Make `subprocess` and `multiprocessing` use the template."""
    subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]  # nothing public
    util.spawnv_passfds = _spawn  # type: ignore[assignment]  # it takes whatever that does


@contextmanager
def warm_interpreters() -> Iterator[None]:
    """Fork the interpreters that this process starts for tests."""
    global _may_start, _template
    if sys.platform == "linux":
        replace()
        _may_start = True
        if "PYTEST_XDIST_WORKER" in os.environ:
            ready()  # many tests of this worker will ask, and it imports meanwhile
    yield
    if _template is not None:
        _template.close()
    _may_start, _template = False, None
    for each in _processes:
        each.kill()
        each.wait()


def _forked(
    words: Sequence[Any], environ: Mapping[str, str], files: Mapping[int, int], **how: Any
) -> int | None:
    """Return the process id of the child that runs the words, or None for a new process."""
    if is_cold:
        return None
    texts = [os.fsdecode(word) for word in words]
    program = program_of(texts, environ)
    if program is None or len(files) > FILES_MOST:
        return None
    template = ready()
    if template is None or not template.is_alike(environ):
        return None
    with suppress(OSError):  # a descriptor, or the folder, that is not there
        for file in files.values():
            os.fstat(file)
        how.setdefault("folder", str(Path.cwd()))
        if Path(how["folder"]).is_dir():
            return template.fork(program, texts, environ, files, **how)
    return None


def _execute_child(popen: Any, *arguments: Any) -> None:
    """Start the child of a `subprocess.Popen`."""
    given = _SIGNATURE.bind(popen, *arguments).arguments
    pid = None
    if _is_usual(given):
        streams = (given["p2cread"], given["c2pwrite"], given["errwrite"])
        files = {number: number if file == -1 else file for number, file in enumerate(streams)}
        files |= {int(file): int(file) for file in given["pass_fds"]}
        umask = given["umask"]
        if umask < 0:
            umask = os.umask(0)
            os.umask(umask)
        pid = _forked(
            given["args"],
            os.environ if given["env"] is None else given["env"],
            files,
            umask=umask,
            session=given["start_new_session"],
            group=given["process_group"],
            bound=given["preexec_fn"] is not None,
            **({} if given["cwd"] is None else {"folder": os.fsdecode(given["cwd"])}),
        )
    if pid is None:
        _cold_child(popen, *arguments)
        return
    popen.pid = pid
    popen._child_created = True
    popen._close_pipe_fds(*(given[name] for name in _PIPES))


_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


def _is_usual(given: Mapping[str, Any]) -> bool:
    """True if a fork satisfies the request of a `subprocess.Popen`."""
    prepare = given["preexec_fn"]
    if prepare is not None:
        # it ends with the thread that has made it, which a fork of the template cannot
        if getattr(prepare, "__qualname__", "") != "pdeathsig_setter.<locals>.bind":
            return False
        if threading.current_thread() is not threading.main_thread():
            return False
    return (
        isinstance(given["args"], list | tuple)
        and given["executable"] is None
        and given["close_fds"]
        and given["restore_signals"]
        and not given["shell"]
        and all(given[name] is None for name in ("gid", "gids", "uid"))
    )


def _spawn(path: str | bytes, words: Sequence[str], files: Sequence[int]) -> int:
    """Start a process of multiprocessing."""
    mask = os.umask(0)
    os.umask(mask)
    kept = {number: number for number in (0, 1, 2, *map(int, files))}
    how = {"umask": mask, "session": False, "group": -1, "bound": False}
    pid = _forked([path, *words[1:]], os.environ, kept, **how)
    return _cold_spawn(path, words, files) if pid is None else pid
