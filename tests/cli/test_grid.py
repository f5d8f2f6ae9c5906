"""`cotswold train --grid`: ranks started by the command, and ranks started by torchrun."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from tests.cli.conftest import Desk
from tests.support.cli.command import cotswold

from cotswold.api.ranks import token_file

COMMAND = (sys.executable, "-m", "cotswold.cli.main")
ENDED_SECONDS = 120
LONG = ("--set", "training.epochs=4000", "--set", "training.checkpoint_minutes=0.02")
TIMEOUT = ("--set", "mesh.timeout=3")

pytestmark = [
    pytest.mark.soak,
    pytest.mark.usefixtures("cold_interpreters"),  # a warm command has one more child
]


def begun(*words: object) -> subprocess.Popen[str]:
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*map(str, words)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environ
    )


def said_by(process: subprocess.Popen[str]) -> str:
    try:
        return process.communicate(timeout=ENDED_SECONDS)[1]
    finally:
        process.kill()


def wait_for(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + ENDED_SECONDS
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def kinds(run: Path) -> list[str]:
    lines = (run / "events.jsonl").read_text().splitlines()
    return [json.loads(line)["kind"] for line in lines]


def was_heard(process: subprocess.Popen[str], number: signal.Signals) -> bool:
    """True if no thread of the process has the signal pending."""
    try:
        statuses = [path.read_text() for path in Path(f"/proc/{process.pid}/task").glob("*/status")]
    except OSError:  # it, or a thread of it, has ended
        return process.poll() is not None
    masks = [
        int(line.split()[1], 16)
        for status in statuses
        for line in status.splitlines()
        if line.startswith(("SigPnd", "ShdPnd"))
    ]
    return not any(mask >> (number - 1) & 1 for mask in masks)


def ranks_of(process: subprocess.Popen[str]) -> list[int]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(child) for child in children.split()]


def test_a_run_of_ranks_goes_on_in_one_process_and_any_command_reads_it(desk: Desk, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = begun(
        *COMMAND, "train", desk.stacks_recipe, "--run", run, "--stores", desk.stores, "--grid", "1x2"
    )
    said = said_by(process)
    assert process.returncode == 0, said
    assert "finished" in said and "1x2 ranks" in said
    assert sorted(path.name for path in (run / "logs").iterdir()) == ["rank-0.log", "rank-1.log"]
    said_alone = cotswold("train", "--run", run, "--resume", "--grid", "none")
    assert said_alone.status == 0 and "resumed" in said_alone.err and " ranks" not in said_alone.err
    assert cotswold("features", run, desk.images, tmp_path / "features.npz").status == 0


def test_a_killed_rank_is_named_and_the_run_goes_on_from_its_checkpoint(desk: Desk, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("train", desk.stacks_recipe, "--run", run, "--stores", desk.stores, "--grid", "1x2", *LONG)
    process = begun(*COMMAND, *words, *TIMEOUT, "--restarts", "1")
    wait_for(lambda: (run / "events.jsonl").exists() and "checkpoint" in kinds(run))
    os.kill(ranks_of(process)[1], signal.SIGKILL)
    wait_for(lambda: "resumed" in kinds(run))
    process.send_signal(signal.SIGINT)
    said = said_by(process)
    assert process.returncode == 130, said
    assert "rank 1" in said and "SIGKILL" in said and "again" in said
    assert kinds(run)[-1] == "end"


def test_hanging_up_saves_and_a_second_signal_says_one_thing(desk: Desk, tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = ("train", desk.stacks_recipe, "--run", run, "--stores", desk.stores, "--grid", "1x2", *LONG)
    again = ("train", "--run", run, "--resume")  # it remembers the grid

    def told(words: Sequence[object], *signals: signal.Signals) -> tuple[int, str]:
        before = len(kinds(run)) if run.exists() else 0
        process = begun(*COMMAND, *words)
        wait_for(lambda: (run / "events.jsonl").exists() and "step" in kinds(run)[before:])
        for number in signals:
            process.send_signal(number)
            wait_for(partial(was_heard, process, number))  # threads hear two at once in any order
        said = said_by(process)
        return process.returncode, said

    code, said = told(first, signal.SIGHUP)
    assert code == 128 + signal.SIGHUP and "stopped and saved" in said, said
    assert kinds(run)[-1] == "end"
    code, said = told(again, signal.SIGINT, signal.SIGTERM)
    assert code == 130 and "1x2 ranks" in said, said
    assert said.count("stopped and saved") + said.count("left at once") == 1, said


def test_a_hung_rank_is_ended_and_no_process_remains(desk: Desk, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("train", desk.stacks_recipe, "--run", run, "--stores", desk.stores, "--grid", "2x1", *LONG)
    process = begun(*COMMAND, *words, *TIMEOUT)
    wait_for(lambda: (run / "events.jsonl").exists() and "checkpoint" in kinds(run))
    ranks = ranks_of(process)
    os.kill(ranks[1], signal.SIGSTOP)
    said = said_by(process)
    assert process.returncode == 1
    assert "rank 1 on" in said and "has been silent" in said
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)
    assert cotswold("features", run, desk.images, tmp_path / "features.npz").status == 0


def test_torchrun_starts_ranks_whose_number_must_fit_the_grid(desk: Desk, tmp_path: Path) -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
    words = ("-m", "--", "cotswold.cli.main", "train", desk.stacks_recipe, "--stores", desk.stores)
    process = begun(*torchrun, "2", *words, "--run", tmp_path / "run", "--grid", "2x1")
    said = said_by(process)
    assert process.returncode == 0, said
    assert "not signed" not in said
    assert stat.S_IMODE(token_file(tmp_path / "run").stat().st_mode) == 0o600
    process = begun(*torchrun, "2", *words, "--run", tmp_path / "other", "--grid", "3x1")
    assert "a 3x1 grid needs 3 ranks, but 2 were started" in said_by(process)
    assert process.returncode != 0


@pytest.mark.parametrize("grid", ["3", "0x2", "2x", "two by two"])
def test_a_grid_is_rows_by_columns(grid: str, desk: Desk, tmp_path: Path) -> None:
    said = cotswold("train", desk.stacks_recipe, "--run", tmp_path / "run", "--grid", grid)
    assert said.status == 2 and "a grid" in said.error


def test_a_grid_that_would_swamp_this_machine_starts_nothing(desk: Desk, tmp_path: Path) -> None:
    said = cotswold("train", desk.stacks_recipe, "--run", tmp_path / "run", "--grid", "1000x1000")
    assert said.status == 2 and "1000000 processes" in said.error
    assert not list(tmp_path.iterdir())


def test_restarts_are_for_ranks(desk: Desk, tmp_path: Path) -> None:
    said = cotswold("train", desk.stacks_recipe, "--run", tmp_path / "run", "--restarts", "2")
    assert said.status == 2 and "give a grid" in said.error
