"""Child processes and their exits."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from cotswold.host.child_process import Child
from cotswold.host.processes import exit_text


def start(body: str, folder: Path) -> Child:
    words = [sys.executable, "-c", f"import os, signal, sys, time\n{body}"]
    output = os.open(folder / "said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        return Child.start(words, dict(os.environ), output=output)
    finally:
        os.close(output)


def ended(child: Child) -> int:
    deadline = time.monotonic() + 20
    while (code := child.code()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return code


def test_a_child_that_ends_tells_its_code_as_often_as_it_is_asked(tmp_path: Path) -> None:
    child = start("print('hello'); sys.exit(7)", tmp_path)
    assert [ended(child), child.code(), child.code()] == [7, 7, 7]
    child.end()
    assert child.code() == 7 and (tmp_path / "said").read_text() == "hello\n"


def test_a_child_that_a_signal_has_ended_tells_its_number(tmp_path: Path) -> None:
    child = start("time.sleep(60)", tmp_path)
    assert child.code() is None
    child.send(signal.SIGTERM)
    assert ended(child) == -signal.SIGTERM
    child.end()


def test_a_child_is_ended_with_what_it_has_started(tmp_path: Path) -> None:
    body = "pid = os.fork()\nif pid: print(pid, flush=True); sys.exit()\ntime.sleep(60)"
    child = start(body, tmp_path)
    assert ended(child) == 0
    grandchild = int((tmp_path / "said").read_text())
    os.kill(grandchild, 0)  # it lives
    child.end()
    deadline = time.monotonic() + 20
    while lives(grandchild):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_child_whose_number_was_given_back_gets_no_signal(tmp_path: Path) -> None:
    child = start("", tmp_path)
    child.end()
    child.send(signal.SIGKILL)  # would raise, or hit a stranger


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "ended with exit code 0"), (-9, "was killed by SIGKILL"), (-63, "was killed by signal 63")],
)
def test_how_a_process_ended_is_said_in_words(code: int, words: str) -> None:
    assert exit_text(code) == words


def lives(pid: int) -> bool:
    """True if a process exists and is not a zombie; one that init or a container never reaps stays one."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
