"""Local ranks of the tests: small programs without torch, and the state of their processes.

Knows: the parent of local ranks, marks in a folder, /proc. Does not know: the tests.
"""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

from cotswold.launch import run_local

LIMIT_SECONDS = 30.0
BEGIN = """
import os, pathlib, signal, sys, time
rank, folder = int(os.environ["COTSWOLD_RANK"]), pathlib.Path(sys.argv[1])
def mark(name): (folder / f"{name}-{rank}").write_text(str(os.getpid()))
def wait(name):
    while not (folder / name).exists(): time.sleep(0.01)
"""


def program(body: str) -> list[str]:
    return [sys.executable, "-c", BEGIN + textwrap.dedent(body)]


def run(folder: Path, body: str, ranks: int = 2, restarts: int = 0) -> int:
    return run_local(
        [str(folder)],
        ranks,
        folder / "run" / "logs",
        cores=4,
        restarts=restarts,
        restart_words=[str(folder), "again"],
        program=program(body),
    )


def alive(mark: Path) -> bool:
    """True if the process that left this mark runs."""
    return state_of(mark) not in {"", "Z"}


def state_of(mark: Path) -> str:
    """Return the state of the process that left this mark: R, S, T ...; "" if it does not exist."""
    return state(int(mark.read_text()))


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
