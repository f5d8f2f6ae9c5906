"""Local ranks that exchange in a loop with torch: deaths, suspensions, torchrun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.launch import worker
from tests.support.launch.local_ranks import LIMIT_SECONDS, state, until
from tests.warm import PYTHON

from cotswold.host.token import VARIABLE, Token
from cotswold.launch import run_local

TRAINING_PARENT = """
import sys
from pathlib import Path
from cotswold.launch import run_local
folder, worker, *words = sys.argv[1:]
words += ["--folder", folder]
program = [sys.executable, "-X", "warm", worker]
sys.exit(run_local(words, 2, Path(folder, "run", "logs"), cores=2, program=program))
"""


@pytest.mark.slow
def test_ranks_that_train_go_on_after_one_was_killed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = run_local(
        ["--on", "1", "kill"],
        2,
        tmp_path / "run" / "logs",
        cores=2,
        restarts=1,
        restart_words=["--steps", "5"],
        program=[*PYTHON, worker.__file__],
    )
    output = capfd.readouterr()
    assert code == 0 and output.out == "rank 0 has finished\n"
    assert "rank 1 was killed by SIGKILL" in output.err


@pytest.mark.soak
@pytest.mark.usefixtures("cold_interpreters")  # a warm parent has one more child
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_ranks_outlive_a_suspension_longer_than_their_timeout(
    tmp_path: Path, training_parent: Callable[..., subprocess.Popen[str]]
) -> None:
    process = training_parent("--timeout", "6")
    ranks = children(process.pid)
    process.send_signal(signal.SIGTSTP)
    until(lambda: {state(pid) for pid in (process.pid, *ranks)} == {"T"})
    time.sleep(7)  # the suspension itself: longer than the timeout
    process.send_signal(signal.SIGCONT)
    steps = newest_steps(tmp_path)
    until(lambda: all(now > steps[rank] + 20 for rank, now in newest_steps(tmp_path).items()))
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=LIMIT_SECONDS)[1] == ""
    assert process.returncode == 130


@pytest.mark.soak
@pytest.mark.usefixtures("cold_interpreters")  # a warm parent has one more child
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_under_a_parent_that_stands_still_no_rank_is_left_behind(
    tmp_path: Path, training_parent: Callable[..., subprocess.Popen[str]]
) -> None:
    process = training_parent("--timeout", "4")
    ranks = children(process.pid)
    process.send_signal(signal.SIGSTOP)
    until(lambda: state(process.pid) == "T")
    os.kill(ranks[1], signal.SIGSTOP)
    until(lambda: {state(pid) for pid in ranks} == {"Z"})
    process.send_signal(signal.SIGCONT)
    said = process.communicate(timeout=LIMIT_SECONDS)[1]
    assert process.returncode == 1
    assert "rank 1 on " in said and "has been silent for 4 s" in said


@pytest.mark.slow
def test_torchrun_starts_ranks_too(tmp_path: Path) -> None:
    torchrun = Path(sys.executable).with_name("torchrun")
    words = ["--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", worker.__file__]
    done = subprocess.run(
        [torchrun, *words, "--on", "1", "raise"],
        env={**os.environ, VARIABLE: Token.new().text},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "failed: ValueError: the third step is too hard; stopping" in done.stderr


@pytest.fixture
def training_parent(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Yield a function that starts the parent of two ranks, which exchange in a loop and record progress in
    ``tmp_path``."""
    parents: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        command = [*PYTHON, "-c", TRAINING_PARENT, str(tmp_path), worker.__file__, *words]
        parents.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        until(lambda: len(newest_steps(tmp_path)) == 2)
        return parents[-1]

    yield start
    for each in parents:
        for rank in children(each.pid):
            os.kill(rank, signal.SIGKILL)
        each.kill()
        each.communicate()


def newest_steps(folder: Path) -> dict[str, int]:
    """Return the newest step of each rank recorded by `worker`, by file name."""
    return {each.name: int(each.read_text() or "0") for each in folder.glob("[01]-*")}


def children(pid: int) -> list[int]:
    """Return the children of a process, in order."""
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []
