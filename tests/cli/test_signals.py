"""Real signals to real processes: one interpreter loads Cotswold and forks a child for each run.

The children train, are interrupted or killed, and are taken up again; the bits at the end are compared with
those of a run that nobody disturbed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Desk
from tests.training.runs import bits

from cotswold.run import RunDirectory

KILLS = 6

SCRIPT = """
import json, os, pathlib, random, signal, sys, time
import torch
from cotswold.cli.main import main
import cotswold.training.job, cotswold.nn, cotswold.cli.train
from cotswold.run import Piece
from cotswold.training.greedy import Greedy

recipe, stores, folder, kills = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
random.seed(0)
os.fsync = lambda file: None  # matters to power cuts alone, and takes most of the time here
cotswold.cli.train.ECHO_SECONDS = 0.0
advance, write_piece = Greedy.advance, Piece.write


def slowed(seconds):
    def slowly(*words):
        time.sleep(seconds)
        return advance(*words)
    Greedy.advance = slowly


def killed_while_writing(number):
    pieces = 0
    def write(*words):
        nonlocal pieces
        pieces += 1
        if pieces == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return write_piece(*words)
    Piece.write = write


def begun(run, prepare):
    child = os.fork()
    if child == 0:
        error = os.open(folder / f"{run.name}.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(error, 2)
        prepare()
        main(["train", recipe, "--run", str(run), "--stores", stores, "--resume-if-started"])
    return child


def ended(child):
    begun = time.monotonic()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, time.monotonic() - begun


def heard(run, *words):
    file = folder / f"{run.name}.err"
    while not file.exists() or not any(word in file.read_text() for word in words):
        time.sleep(0.01)


report = {"interrupts": [], "said": []}
run = folder / "interrupted"
for number in (signal.SIGINT, signal.SIGTERM):
    child = begun(run, lambda: slowed(0.03))
    heard(run, "held out", "resumed after")
    os.kill(child, number)
    report["interrupts"].append(ended(child)[0])
    report["said"].append((folder / "interrupted.err").read_text().splitlines()[-1])
    (folder / "interrupted.err").unlink()
report["interrupted"] = ended(begun(run, lambda: None))[0]

run = folder / "twice"
child = begun(run, lambda: slowed(60))
heard(run, "held out")
os.kill(child, signal.SIGINT)
heard(run, "once more to leave at once")
os.kill(child, signal.SIGINT)
report["twice"] = ended(child)
report["twice_said"] = (folder / "twice.err").read_text().splitlines()[-1]

run = folder / "killed"
report["kills"] = []
for _ in range(kills):
    child = begun(run, lambda: slowed(0.02))
    time.sleep(random.uniform(0.1, 0.6))
    os.kill(child, signal.SIGKILL)
    report["kills"].append(ended(child)[0])
report["killed"] = ended(begun(run, lambda: None))[0]

run = folder / "torn"
report["torn_kills"] = [ended(begun(run, lambda: killed_while_writing(n)))[0] for n in (1, 12, 25)]
report["partial"] = any(path.name.endswith(".partial") for path in (run / "checkpoints").iterdir())
report["torn"] = ended(begun(run, lambda: None))[0]
print(json.dumps(report))
"""


@pytest.fixture(scope="module")
def disturbed(desk: Desk, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of the disturbed runs and how each process ended."""
    folder = tmp_path_factory.mktemp("disturbed")
    recipe = folder / "often.toml"
    text = desk.stacks_recipe.read_text()
    recipe.write_text(text.replace("threads = 1", "threads = 1\ncheckpoint_minutes = 0.000001"))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(recipe), str(desk.stores), str(folder), str(KILLS)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return folder, report


def same_as_undisturbed(run: Path, desk: Desk) -> bool:
    return bits(RunDirectory.open(run)) == bits(RunDirectory.open(desk.stacks))


def test_interrupted_runs_exit_with_the_signals_number_and_go_on_with_the_same_bits(
    disturbed: tuple[Path, dict[str, Any]], desk: Desk
) -> None:
    folder, report = disturbed
    assert report["interrupts"] == [130, 143]
    assert report["interrupted"] == 0
    for line in report["said"]:
        assert line.startswith("cotswold: stopped and saved; go on with: cotswold train --run")
    assert same_as_undisturbed(folder / "interrupted", desk)


def test_a_second_interrupt_leaves_at_once(disturbed: tuple[Path, dict[str, Any]]) -> None:
    status, seconds = disturbed[1]["twice"]
    assert status == 130
    assert seconds < 5  # in the middle of a step of a minute
    assert disturbed[1]["twice_said"] == "left at once; nothing since the last checkpoint is kept"


def test_a_run_killed_at_random_moments_goes_on_with_the_same_bits(
    disturbed: tuple[Path, dict[str, Any]], desk: Desk
) -> None:
    folder, report = disturbed
    assert -9 in report["kills"]
    assert report["killed"] == 0
    assert same_as_undisturbed(folder / "killed", desk)


def test_a_run_killed_in_the_middle_of_writing_a_checkpoint_goes_on_from_the_one_before(
    disturbed: tuple[Path, dict[str, Any]], desk: Desk
) -> None:
    folder, report = disturbed
    assert report["torn_kills"] == [-9] * 3
    assert report["partial"]
    assert report["torn"] == 0
    assert same_as_undisturbed(folder / "torn", desk)
