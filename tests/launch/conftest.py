"""Ranks for kill tests, forked from one process that has imported torch, so that tests are fast.

Knows: processes, the files that they print to. Does not know: their work.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
import torch
from tests.ports import free_ports
from tests.support.launch import script, worker

from cotswold.host import Token

LIMIT_SECONDS = 30.0


@dataclass
class Job:
    """The ranks of one job."""

    folder: Path
    master: str
    size: int
    token: str = field(default_factory=lambda: Token.new().text)
    processes: list[ForkServerProcess] = field(default_factory=list)

    def start(self, rank: int, words: Sequence[str], **variables: str) -> ForkServerProcess:
        """Start the worker of these tests as one of our own ranks."""
        place = {
            "COTSWOLD_RANK": str(rank),
            "COTSWOLD_RANKS": str(self.size),
            "COTSWOLD_LOCAL_RANK": str(rank),
            "COTSWOLD_LOCAL_RANKS": str(self.size),
            "COTSWOLD_MASTER": self.master,
            "COTSWOLD_TOKEN": self.token,
        }
        return self._start(worker.main, words, place | variables)

    def start_script(self, rank: int, words: Sequence[str], **variables: str) -> ForkServerProcess:
        """Start a user's script with the variables of torch.distributed, without a token."""
        host, port = self.master.split(":")
        place = {"RANK": str(rank), "WORLD_SIZE": str(self.size), "MASTER_ADDR": host, "MASTER_PORT": port}
        return self._start(script.main, words, place | variables)

    def _start(
        self, program: Callable[[Sequence[str]], int], words: Sequence[str], variables: Mapping[str, str]
    ) -> ForkServerProcess:
        output = str(self.folder / f"{len(self.processes)}.txt")
        process = multiprocessing.get_context("forkserver").Process(
            target=as_child, args=(program, list(words), variables, output)
        )
        process.start()
        self.processes.append(process)
        return process

    def codes(self, *processes: ForkServerProcess) -> list[int | None]:
        """Return exit codes of all or some processes, once they have exited."""
        deadline = time.monotonic() + LIMIT_SECONDS
        for process in processes or self.processes:
            process.join(max(deadline - time.monotonic(), 0))
        return [process.exitcode for process in processes or self.processes]

    def printed(self, number: int) -> str:
        """Return the output of the process that was started as number 0, 1, ..."""
        return (self.folder / f"{number}.txt").read_text()

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.01)


def as_child(
    program: Callable[[Sequence[str]], int], words: Sequence[str], variables: Mapping[str, str], output: str
) -> None:
    """Run a program in a forked process, printing to a file."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ.update(variables)
    torch.set_num_threads(1)
    sys.exit(program(words))


@pytest.fixture(scope="session")
def _forkserver() -> None:
    os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"  # as launch.settings_of has it
    # one that other tests have started may have read another environment
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # nothing public stops it
    multiprocessing.set_forkserver_preload([worker.__name__, script.__name__])


@pytest.fixture
def new_job(_forkserver: None, tmp_path: Path) -> Iterator[Callable[[int], Job]]:
    """Yield a function that makes jobs of some ranks, with a port each; remaining processes are killed."""
    jobs: list[Job] = []

    def new(size: int) -> Job:
        folder = tmp_path / f"job-{len(jobs)}"
        folder.mkdir()
        (port,) = ports.enter_context(free_ports(1))
        jobs.append(Job(folder, f"127.0.0.1:{port}", size))
        return jobs[-1]

    with ExitStack() as ports:
        yield new
        for job in jobs:
            for process in job.processes:
                process.kill()
                process.join()


@pytest.fixture
def start(new_job: Callable[[int], Job]) -> Callable[..., Job]:
    """Return a function that starts a job of ``size`` ranks with the same arguments."""

    def started(size: int, *words: str, **variables: str) -> Job:
        job = new_job(size)
        for rank in range(size):
            job.start(rank, words, **variables)
        return job

    return started
