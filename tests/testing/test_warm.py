"""Interpreters that tests fork from a template equal new ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests import warm
from tests.warm import PYTHON

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="interpreters are forked on Linux alone")

ABOUT = """
import json, os, resource, signal, sys, threading
ignored = [each for each in signal.valid_signals() if signal.getsignal(each) == signal.SIG_IGN]
streams = (sys.stdin, sys.stdout, sys.stderr)
print(json.dumps({
    "argv": sys.argv,
    "path": sys.path,
    "main": sorted(vars(sys.modules["__main__"])),
    "folder": os.getcwd(),
    "environ": dict(os.environ),
    "files": sorted(int(each) for each in os.listdir("/proc/self/fd") if 3 < int(each) < 100),
    "parent": os.getppid(),
    "leads": (os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid()),
    "ignored": ignored,
    "blocked": list(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "most files": resource.getrlimit(resource.RLIMIT_NOFILE),
    "umask": os.umask(0),
    "threads": threading.active_count(),
    "streams": [(each.encoding, each.errors, each.line_buffering, each.write_through) for each in streams],
    "is_warm": "torch" in sys.modules,
}))
"""


def about(words: Sequence[str], **how: object) -> dict[str, Any]:
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, **how)  # type: ignore[call-overload]  # any
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "about.py"
    path.write_text(ABOUT)
    return path


@pytest.mark.parametrize("session", [False, True])
@pytest.mark.parametrize("kind", ["-c", "-m", "file"])
def test_a_forked_interpreter_inherits_and_knows_what_a_new_one_does(
    program: Path, kind: str, session: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {"-c": ["-c", ABOUT], "-m": ["-m", "about"], "file": [str(program)]}[kind]
    with (program.parent / "input").open("w+") as given:
        how = {
            "cwd": program.parent,
            "env": {**os.environ, "COTSWOLD_A": "ö\udc80", "OMP_NUM_THREADS": "1"},
            "stdin": given,
            "pass_fds": [given.fileno()],
            "umask": 0o27,
            "start_new_session": session,
        }
        handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            forked = about([*PYTHON, *words, "a b", ""], **how)
            monkeypatch.setattr(warm, "is_cold", True)
            new = about([*PYTHON, *words, "a b", ""], **how)
        finally:
            signal.signal(signal.SIGHUP, handler)
    assert forked.pop("is_warm") and not new.pop("is_warm")
    # from Python 3.14 on it is made when somebody asks
    assert {*forked.pop("main"), "__annotations__"} == {*new.pop("main"), "__annotations__"}
    assert forked == new


@pytest.mark.parametrize(
    "body",
    [
        "sys.exit(7)",
        "sys.exit('no')",
        "sys.exit(300)",
        "raise KeyboardInterrupt",
        "raise ValueError('ö')",
        "os.kill(os.getpid(), signal.SIGKILL)",
        "os.kill(os.getpid(), signal.SIGTERM)",
        "atexit.register(print, 'last'); print('first')",
        "threading.Thread(target=lambda: (time.sleep(0.01), print('thread'))).start()",
    ],
)
def test_a_forked_interpreter_ends_as_a_new_one_does(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended() -> tuple[int, str, str]:
        words = [*PYTHON, "-c", f"import atexit, os, signal, sys, threading, time\n{body}"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    forked = ended()
    monkeypatch.setattr(warm, "is_cold", True)
    assert forked == ended()


def test_interpreters_of_a_forked_one_are_forked_and_are_its_children() -> None:
    body = (
        "import os, subprocess, sys\n"
        "inner = 'import os, sys; print(os.getppid(), \"torch\" in sys.modules)'\n"
        "subprocess.run([sys.executable, '-X', 'warm', '-c', inner], check=True)\n"
        "print(os.getpid())"
    )
    words = [*PYTHON, "-c", body]
    inner, outer = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert inner == f"{outer} True"


def test_an_interpreter_in_other_namespaces_is_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*PYTHON, "-c", "import sys; print('torch' in sys.modules)"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "True\n"
    monkeypatch.setattr(warm, "_namespaces", lambda: ["net:[1]"])
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_template_that_was_killed_is_replaced() -> None:
    is_warm = [*PYTHON, "-c", "import sys; print('torch' in sys.modules)"]
    subprocess.run(is_warm, check=True)
    (template,) = (each for each in warm._processes if each.poll() is None)
    template.kill()
    template.wait()
    found = [subprocess.run(is_warm, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert found == ["False\n", "True\n"]


@pytest.mark.parametrize("name", ["HOME", "LC_ALL", "PYTHONPATH", "PYTHONWARNINGS", "TORCH_LOGS"])
def test_an_interpreter_with_other_variables_that_are_read_at_its_start_is_a_new_one(name: str) -> None:
    environ = {**os.environ, name: "C" if name == "LC_ALL" else "/nowhere"}
    body = "import sys; print('torch' in sys.modules)"
    done = subprocess.run([*PYTHON, "-c", body], env=environ, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "False\n"


def test_an_interpreter_can_be_a_new_process(cold_interpreters: None) -> None:
    body = "import sys; print('torch' in sys.modules)"
    done = subprocess.run([*PYTHON, "-c", body], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "False\n"
