"""Real signals to real processes: one interpreter loads Cotswold and forks a child for each run.

The children train, are interrupted or killed, and resume; the final bits must equal those of an undisturbed
run.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Desk
from tests.support.training.runs import bits
from tests.warm import PYTHON

from cotswold.run import RunDirectory, read_events

BEGIN = """
import gc, json, os, pathlib, signal, sys, time
import llvmlite.binding, tomlkit, torch, torch.utils.flop_counter, zmq
from PIL import Image
from cotswold.cli.main import main
import cotswold.api.train_recipe, cotswold.api.signals, cotswold.cli.train, cotswold.nn
import cotswold.training.jobs.job, cotswold.training.full_batch.objective
from cotswold.checkpoint import CheckpointManager, TensorChunk
from cotswold.run import EventLog
from cotswold.checkpoint.manifest import Manifest
from cotswold.training.strategies.greedy import Greedy

recipe, stores, folder = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
torch.set_num_threads(1)
os.fsync = lambda file: None  # matters to power cuts alone, and takes most of the time here
cotswold.api.signals.ECHO_SECONDS = 0.0
train_step = Greedy.train_step
Image.init()
gc.freeze()  # or each child would copy, when it ends, all that was imported here


def slowed(seconds):
    def slowly(*words):
        time.sleep(seconds)
        return train_step(*words)
    Greedy.train_step = slowly


def killed_before(owner, name, number):
    real, left = getattr(owner, name), number
    def dying(*words, **named):
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return real(*words, **named)
    setattr(owner, name, dying)


def unread():
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, 1)
    os.dup2(writer, 2)


def closed():
    os.close(1)
    os.close(2)
    sys.stdout = sys.stderr = None  # as Python has them then


def begun(run, prepare):
    child = os.fork()
    if child == 0:
        error = os.open(folder / f"{run.name}.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(error, 2)
        os.close(error)
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
"""
INTERRUPTED = """
report = {"interrupts": [], "said": []}
run = folder / "interrupted"
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    child = begun(run, lambda: slowed(0.03))
    heard(run, "validation: loss", "resumed after")
    os.kill(child, number)
    report["interrupts"].append(ended(child)[0])
    report["said"].append((folder / "interrupted.err").read_text().splitlines()[-1])
    (folder / "interrupted.err").unlink()
report["interrupted"] = ended(begun(run, lambda: None))[0]

run = folder / "twice"
child = begun(run, lambda: slowed(60))
heard(run, "validation: loss")
os.kill(child, signal.SIGINT)
heard(run, "press again to stop at once")
os.kill(child, signal.SIGINT)
report["twice"] = ended(child)
report["twice_said"] = (folder / "twice.err").read_text().splitlines()[-1]
print(json.dumps(report))
"""
DISTURBED = """
report = {}
run = folder / "closing"
child = begun(run, lambda: slowed(0.03))
heard(run, "validation: loss")
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGHUP):
    os.kill(child, number)
report["closing"] = ended(child)[0]

for name, prepare in (("unread", unread), ("closed", closed)):
    report[name] = ended(begun(folder / name, prepare))[0]

run = folder / "nohup"
def deaf():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    slowed(0.03)
child = begun(run, deaf)
heard(run, "validation: loss")
os.kill(child, signal.SIGHUP)
report["nohup"] = ended(child)[0]

run = folder / "killed"
report["killed_before"] = {}
for owner, name, number in (
    (Greedy, "train_step", 3),
    (TensorChunk, "write", 1),
    (Manifest, "write", 2),
    (CheckpointManager, "_prune", 2),
    (EventLog, "write", 20),
):
    status, _ = ended(begun(run, lambda: killed_before(owner, name, number)))
    found = sorted(path.name for path in (run / "checkpoints").glob("*"))
    report["killed_before"][f"{owner.__name__}.{name}"] = [status, found]
report["killed"] = ended(begun(run, lambda: None))[0]
print(json.dumps(report))
"""


def reported(script: str, desk: Desk, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the folder of a script's runs, and the exit of each process."""
    recipe = folder / "often.toml"
    text = desk.stacks_recipe.read_text()
    recipe.write_text(text.replace("threads = 1", "threads = 1\ncheckpoint_minutes = 0.000001"))
    done = subprocess.run(
        [*PYTHON, "-c", BEGIN + script, str(recipe), str(desk.stores), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return folder, report


@pytest.fixture(scope="module")
def interrupted(desk: Desk, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Runs that receive signals one after the other."""
    return reported(INTERRUPTED, desk, tmp_path_factory.mktemp("interrupted"))


@pytest.fixture(scope="module")
def disturbed(desk: Desk, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Runs whose terminal closes, whose pipes have no reader, and that are killed."""
    return reported(DISTURBED, desk, tmp_path_factory.mktemp("disturbed"))


def same_as_undisturbed(run: Path, desk: Desk) -> bool:
    return bits(RunDirectory.open(run)) == bits(RunDirectory.open(desk.stacks))


@pytest.mark.soak
def test_interrupted_runs_exit_with_the_signals_number_and_go_on_with_the_same_bits(
    interrupted: tuple[Path, dict[str, Any]], desk: Desk
) -> None:
    folder, report = interrupted
    assert report["interrupts"] == [130, 143, 129]
    assert report["interrupted"] == 0
    for line in report["said"]:
        assert line.startswith("cotswold: stopped and saved; resume with: cotswold train --run")
    assert same_as_undisturbed(folder / "interrupted", desk)


@pytest.mark.soak
def test_a_second_interrupt_leaves_at_once(interrupted: tuple[Path, dict[str, Any]]) -> None:
    status, seconds = interrupted[1]["twice"]
    assert status == 130
    assert seconds < 5  # in the middle of a step of a minute
    assert interrupted[1]["twice_said"] == "left at once; progress since the last checkpoint is lost"


def test_a_terminal_that_closes_after_another_signal_does_not_hurry_the_run(
    disturbed: tuple[Path, dict[str, Any]],
) -> None:
    assert disturbed[1]["closing"] == 143


def test_a_run_under_nohup_does_not_hear_the_terminal_close(
    disturbed: tuple[Path, dict[str, Any]], desk: Desk
) -> None:
    assert disturbed[1]["nohup"] == 0
    assert same_as_undisturbed(disturbed[0] / "nohup", desk)


@pytest.mark.parametrize("how", ["unread", "closed"])
def test_a_run_without_a_reader_of_its_output_continues_to_its_end(
    disturbed: tuple[Path, dict[str, Any]], desk: Desk, how: str
) -> None:
    folder, report = disturbed
    assert report[how] == 0
    assert same_as_undisturbed(folder / how, desk)
    lost = [event for event in read_events(folder / how / "events.jsonl") if event["kind"] == "observer_lost"]
    assert [event["observer"] for event in lost] == (["the callback"] if how == "unread" else [])


def test_a_run_killed_in_any_phase_goes_on_with_the_same_bits(
    disturbed: tuple[Path, dict[str, Any]], desk: Desk
) -> None:
    folder, report = disturbed
    killed = report["killed_before"]
    assert [status for status, _ in killed.values()] == [-9] * 5, killed
    # inside a save the last checkpoint stays, and the one that was begun has a name of its own
    for phase in ("TensorChunk.write", "Manifest.write"):
        assert any(name.endswith(".partial") for name in killed[phase][1]), killed
    assert len(killed["CheckpointManager._prune"][1]) == 3, killed  # renamed, and the oldest not yet removed
    assert report["killed"] == 0
    assert same_as_undisturbed(folder / "killed", desk)
