"""Programs of `examples`, started in processes of their own, and killed there.

Knows: their arguments, the folders of their runs, their processes. Does not know: what they train.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from tests.warm import PYTHON

from cotswold.files import PARTIAL
from cotswold.host.process_info import process_tree

EXAMPLES = Path(__file__).parents[3] / "examples"
SECONDS = 120.0
"""Longest time of a program."""


@dataclass(frozen=True)
class Program:
    """A program that runs, and the files of its two outputs."""

    process: subprocess.Popen[bytes]
    output: Path
    error: Path

    def wait(self) -> str:
        """Return what the program printed; fails with its error unless it succeeds."""
        status = self.process.wait(timeout=SECONDS)
        assert status == 0, f"exit status {status}: {self.error.read_text()}"
        return self.output.read_text()

    def kill(self) -> None:
        """Kill the program and every process that it started, and wait until they are gone."""
        family = process_tree(self.process.pid)
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=SECONDS)
        deadline = time.monotonic() + 20
        while alive := [each for each in family if Path(f"/proc/{each}").exists()]:
            assert time.monotonic() < deadline, f"{alive} of {family} survive a kill of their process group"
            time.sleep(0.01)


@contextmanager
def started(name: str, directory: Path) -> Iterator[Program]:
    """Start the short form of an example; it runs in the folder that contains ``directory``."""
    output, error = directory.with_suffix(".out"), directory.with_suffix(".err")
    with output.open("wb") as out, error.open("wb") as err:
        process = subprocess.Popen(
            [*PYTHON, str(EXAMPLES / f"{name}.py"), str(directory), "--short"],
            cwd=directory.parent,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    program = Program(process, output, error)
    try:
        yield program
    finally:
        if process.poll() is None:
            program.kill()


def finish(name: str, directory: Path) -> str:
    """Return what the short form of an example prints."""
    with started(name, directory) as program:
        return program.wait()


def kill_after(name: str, directory: Path, folder: Path, count: int, delay: float = 0.0) -> bool:
    """Start an example, and kill it ``delay`` seconds after new folders appear; False if it ends before.

    Args:
        name: The example.
        directory: Its argument.
        folder: Where its checkpoints, or its runs, appear. A checkpoint before the first step does not count.
        count: Number of new folders.
        delay: Seconds to wait after the last of them.
    """
    seen = _folders(folder)
    most = len(seen) + count
    with started(name, directory) as program:
        pause = Event()
        while len(seen) < most:
            if program.process.poll() is not None:
                program.wait()
                return False
            pause.wait(0.002)
            seen |= _folders(folder)
        pause.wait(delay)
        is_running = program.process.poll() is None
        if is_running:
            program.kill()
        else:
            program.wait()
    return is_running


def kill_rank(name: str, directory: Path, folder: Path, rank: int) -> str:
    """Start an example, and kill one rank alone after a first checkpoint in ``folder``; return its error.

    The processes of the example must be new interpreters: their environment says which rank they are.
    """
    with started(name, directory) as program:
        pause = Event()
        while not _folders(folder):
            assert program.process.poll() is None, program.error.read_text()
            pause.wait(0.002)
        mark = f"COTSWOLD_RANK={rank}".encode()
        (found,) = (
            each
            for each in process_tree(program.process.pid)[1:]
            if mark in Path(f"/proc/{each}/environ").read_bytes().split(b"\0")
        )
        os.kill(found, signal.SIGKILL)
        assert program.process.wait(timeout=SECONDS) == 1
    return program.error.read_text()


def _folders(folder: Path) -> set[str]:
    """Return the names of complete folders."""
    return {each.name for each in folder.glob("*") if each.suffix != PARTIAL and each.name.strip("0")}
