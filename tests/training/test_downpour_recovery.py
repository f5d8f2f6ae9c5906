"""Runs of strategy downpour that save while they learn, are killed, run out of patience, or learn nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.training.runs import bits, events, finish, last, resumed
from tests.training.async_sgd.test_strategy import job_of, recipe_of
from tests.warm import PYTHON

from cotswold.checkpoint import CheckpointManager
from cotswold.errors import DivergedError, MachineError, RecipeError
from cotswold.replicas import evaluator
from cotswold.replicas.evaluator import EvaluatorHandle
from cotswold.replicas.replicas import Replicas
from cotswold.run import RunDirectory, Stop, recorder
from cotswold.training import Resume, open_job
from cotswold.wire.lifecycle import ServerCounters

SCRIPT = """
import sys
from pathlib import Path
from cotswold.run import Stop
from cotswold.training import open_job
recipe, run, stores = map(Path, sys.argv[1:])
open_job(recipe, run, stores=stores).train(watch=lambda event: None, stop=Stop())
"""


def audit(run: RunDirectory) -> dict[str, int]:
    """Return the account of all samples in the newest checkpoint, after checking that it is complete."""
    ledger = bits(run)[1]["strategy"]["ledger"]
    total: dict[str, int] = {}
    for account in ledger["accounts"].values():
        for name, value in account.items():
            total[name] = total.get(name, 0) + value
    assert total["handed_out"] == total["counted"] + total["torn"] + total["refused"] + total["lost"]
    free = sum(stop - start for start, stop in ledger["free"])
    known = total["counted"] + total["torn"] + total["refused"] + total["left_out"]
    assert known + free == 240 * len(ledger["accounts"])
    return total


@pytest.mark.soak
def test_a_run_that_is_killed_at_any_moment_goes_on_from_its_newest_checkpoint(tmp_path: Path) -> None:
    training: dict[str, Any] = {
        "epoch_fraction": 1.0,
        "update_rule": "adagrad",
        "learning_rate": 0.05,
        "checkpoint_minutes": 1e-4,
        "epochs": 60,
    }
    recipe = recipe_of(tmp_path, "workers = 2, servers = 2", **training)
    run = RunDirectory(tmp_path / "run")
    with subprocess.Popen(
        [*PYTHON, "-c", SCRIPT, str(recipe), str(run.path), str(tmp_path / "stores")]
    ) as process:
        deadline = time.monotonic() + 60
        while len(CheckpointManager(run.checkpoints).paths()) < 1 and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
    before = audit(run)
    assert 0 < before["counted"] < 60 * 240, "it was killed on its way"
    names = set(last(run.checkpoints).tensors())
    assert any(name.startswith("vector.squares") for name in names)
    pushed = bits(run)[1]["strategy"]["pushed"]["layer 1"]
    again = resumed(run.path, tmp_path / "stores")
    finish(again)
    after = audit(run)
    assert after["counted"] + after["torn"] == 60 * 240
    assert after["lost"] >= before["lost"]
    updates = events(run, "step")[-1]["updates"]
    assert isinstance(updates, int) and updates >= 60 * 240 // 16, "those before the kill are counted"
    assert bits(run)[1]["account"]["samples"] == after["counted"], "what was told of and lost is not"
    (over,) = events(run, "phase_end")
    assert int(str(over["pushed_bytes"])) > sum(pushed.values()) > 0, "of all sessions"


def test_updates_wait_for_what_others_compute(tmp_path: Path) -> None:
    job = job_of(
        tmp_path, "workers = 3", max_staleness=2, staleness_policy="wait", epochs=20, epoch_fraction=1.0
    )
    finish(job)
    assert int(str(events(job.run, "step")[-1]["staleness_max"])) <= 2 + 2, "others may be ready with it"
    assert audit(job.run)["counted"] == 20 * 240


@pytest.mark.soak
def test_checkpoints_are_written_while_replicas_learn(tmp_path: Path) -> None:
    job = job_of(tmp_path, checkpoint_minutes=1e-4, epochs=60, epoch_fraction=1.0)
    finish(job)
    written = [int(str(event["step"])) for event in events(job.run, "checkpoint")]
    on_the_way = written[:-1]  # the last says that the run is over; one before may be of the same samples
    assert len(written) >= 3 and written == sorted(written) and on_the_way == sorted(set(on_the_way))
    assert audit(job.run)["lost"] == 0, "nobody was made to begin anew"


@pytest.mark.soak
def test_patience_ends_a_run_which_goes_on_when_it_is_given_another(tmp_path: Path) -> None:
    job = job_of(tmp_path, patience=2, epochs=300, learning_rate=0.5)
    finish(job)
    (end,) = events(job.run, "phase_end")
    assert end["reason"] == "no better validation 2 times"
    found = [float(str(event["loss"])) for event in events(job.run, "validation")]
    best = min(range(len(found)), key=found.__getitem__)
    no_better = [number for number in range(1, len(found)) if found[number] >= min(found[:number])]
    assert any(number + 1 in no_better for number in no_better)  # what is judged afterwards may be the best
    kept = last(job.run.best)
    assert kept.state["position"]["total"] == events(job.run, "validation")[best]["step"]  # type: ignore[index]  # a table
    finish(resumed(job.run.path, tmp_path / "stores"))
    assert len(events(job.run, "phase_end")) == 1, "it is over"
    more = recipe_of(tmp_path, patience=1, epochs=300, learning_rate=0.5)
    finish(open_job(more, job.run.path, stores=tmp_path / "stores", resume=Resume.ALWAYS))
    assert len(events(job.run, "phase_end")) == 2


def test_patience_without_validation_is_refused(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, patience=1)
    recipe.write_text(recipe.read_text().replace("validation = 0.2", "validation = 0"))
    job = open_job(recipe, tmp_path / "run", stores=tmp_path / "stores")
    with pytest.raises(RecipeError, match=r"data\.validation"):
        job.train(watch=lambda event: None, stop=Stop())


def test_a_run_of_which_everything_is_refused_ends_in_a_sentence(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, epochs=300, learning_rate=1e30)
    recipe.write_text(recipe.read_text().replace("tanh", "relu"))
    job = open_job(recipe, tmp_path / "run", stores=tmp_path / "stores")
    complaint = r"servers rejected all of the last \d+ samples .*not finite.*rate"
    with pytest.raises(DivergedError, match=complaint):
        job.train(watch=lambda event: None, stop=Stop())


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_run_whose_evaluators_all_end_saves_what_it_has_learnt(
    is_stopped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []
    start, stop = EvaluatorHandle._start, Stop()

    def start_known(self: EvaluatorHandle) -> None:
        start(self)
        pids.append(self._coordinator.process_group.pid_of(self._name))

    def watch(event: Mapping[str, object]) -> None:
        if event["kind"] == "step" and pids:
            os.kill(pids.pop(), signal.SIGKILL)
            stop.signal = 2 if is_stopped else None

    monkeypatch.setattr(EvaluatorHandle, "_start", start_known)
    monkeypatch.setattr(evaluator, "_STARTS", 1)
    monkeypatch.setattr(recorder, "EVENT_SECONDS", 0.0)
    job = job_of(tmp_path, epochs=3000)
    if is_stopped:
        assert not job.train(watch=watch, stop=stop)
    else:
        with pytest.raises(MachineError, match="nothing can be evaluated"):
            job.train(watch=watch, stop=stop)
    assert not pids, "it was killed"
    assert audit(job.run)["counted"] > 0


@pytest.mark.parametrize(
    ("epochs", "said"),
    [
        (2, "the run has finished its 2 epochs; set more training.epochs"),
        (1, "the run has finished 2 epochs, but training.epochs is 1; set more than 2, or omit it"),
    ],
)
def test_a_resumption_that_leaves_nothing_to_train_says_why(epochs: int, said: str, tmp_path: Path) -> None:
    finish(job_of(tmp_path, epochs=2))
    again = recipe_of(tmp_path, epochs=epochs)
    job = open_job(again, tmp_path / "run", stores=tmp_path / "stores", resume=Resume.ALWAYS)
    assert [event["reason"] for event in events(finish(job), "already_complete")] == [said]


def test_a_run_that_was_stopped_after_more_epochs_than_are_asked_for_says_so(tmp_path: Path) -> None:
    stop = Stop()

    def watch(event: Mapping[str, object]) -> None:
        if event["kind"] == "replicas" and int(str(event["epoch"])) >= 3:
            stop.signal = 2

    assert not job_of(tmp_path, epochs=3000).train(watch=watch, stop=stop)
    job = open_job(
        recipe_of(tmp_path, epochs=2), tmp_path / "run", stores=tmp_path / "stores", resume=Resume.ALWAYS
    )
    (event,) = events(finish(job), "already_complete")
    assert "but training.epochs is 2; set more than" in str(event["reason"])


def test_a_run_tells_of_its_steps_while_no_server_can_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All servers with copies have died at once, and their successors do not exist yet."""
    count, asked = Replicas.count, 0

    def nobody_at_first(self: Replicas) -> tuple[ServerCounters, ...]:
        nonlocal asked
        asked += 1
        return () if asked <= 2 else count(self)

    monkeypatch.setattr(Replicas, "count", nobody_at_first)
    job = job_of(tmp_path, epochs=20, epoch_fraction=1.0)
    finish(job)
    assert events(job.run, "step")[0]["staleness_max"] == 0
    assert audit(job.run)["counted"] == 20 * 240
