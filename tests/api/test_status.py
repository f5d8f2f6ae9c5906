"""Status of runs in every state, without training."""

from __future__ import annotations

from pathlib import Path

import pytest

import cotswold
from cotswold.errors import RunError, UserError
from cotswold.files import holder_of
from cotswold.recipe import dump, parse
from cotswold.run import EventLog, RunDirectory
from cotswold.run.loggers.status_file import StatusFile

RECIPE = """
name = "x"
data = { type = "vectors", source = "x.npy", labels = "file", features = 5 }
network = { layers = [{ type = "linear", features = 8 }] }
training = { strategy = "batch" }
"""
OWN_DATA = '{ type = "dataset", samples = 9, validation = 0.1 }'
STEP = {
    "kind": "step",
    "phase": "layers",
    "phase_step": 3,
    "phase_steps": 9,
    "loss": 0.5,
    "samples_per_second": 7.0,
    "gflops": 1.0,
}
PORTIONS = {"kind": "portions", "evaluation": 4, "portions_done": 20, "portions": 30, "workers": 2}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", dump(parse(RECIPE)), {})


def test_a_run_of_another_strategy_says_how_far_it_is_and_what_is_not_known(run: RunDirectory) -> None:
    status = StatusFile(run.status, clock=iter((0.0, 0.0, 2.0, 2.0)).__next__)
    with run.lock():
        assert "it is starting, without a report yet" in cotswold.why(run.path).sentences[0]
        status.write(STEP)
        status.write(PORTIONS)
        found = cotswold.why(run.path)
        holder = holder_of(run.path)
    assert holder is not None and found.state == "running"
    assert f"batch, process {holder.process} on {holder.host}" in found.sentences[0]
    assert found.sentences[1].startswith("layers 3/9 loss 0.5")
    assert found.sentences[2] == "evaluation 4: 20 of 30 portions, 2 workers"
    assert "only available for strategy downpour" in found.sentences[3]


def test_a_warning_of_a_run_that_goes_on_comes_before_its_figures(run: RunDirectory) -> None:
    status = StatusFile(run.status, clock=iter((0.0, 0.0, 2.0, 2.0)).__next__)
    with run.lock():
        status.write({"kind": "warning", "warning": "320 samples are torn"})
        status.write(STEP)
        found = cotswold.why(run.path)
    assert found.sentences[1] == "warning: 320 samples are torn"
    assert found.sentences[2].startswith("layers 3/9 loss 0.5")


def test_a_run_that_says_nothing_any_more_is_called_late(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cotswold.run.loggers.status_file.time.time", lambda: 1000.0)
    StatusFile(run.status).write(STEP)
    monkeypatch.setattr("cotswold.api.status.time.time", lambda: 1075.0)
    with run.lock():
        (first, *_) = cotswold.why(run.path).sentences
    assert "no report for 1 min 15 s; --stacks shows its stack" in first


@pytest.mark.parametrize(
    ("status", "why", "said"),
    [
        ("finished", "", "has finished"),
        ("interrupted", "", "was stopped and saved; --resume continues it"),
        (
            "limited",
            "price.max_hours = 1 is reached",
            "at its limit; --resume continues it: price.max_hours = 1",
        ),
        ("failed", "server-0 is gone", "has failed: server-0 is gone"),
    ],
)
def test_of_a_run_that_is_over_it_says_how_it_ended(
    status: str, why: str, said: str, run: RunDirectory
) -> None:
    with EventLog(run.events) as log:
        rest = {"flops_per_second": 1e9, "training_seconds": 5.0, "samples": 10}
        log.write("end", status=status, reason=why, **rest)
    found = cotswold.why(run.path)
    assert found.state == "ended" and said in found.sentences[0] and found.status == {}
    assert "()" not in found.sentences[1]


def test_of_a_run_that_was_killed_it_says_what_was_done_then(run: RunDirectory) -> None:
    StatusFile(run.status).write(PORTIONS)
    with EventLog(run.events) as log:
        log.write("start", name="x")
    found = cotswold.why(run.path)
    assert found.state == "killed"
    assert "ended without saving: stopped at once, or killed; no process trains it" in found.sentences[0]
    assert found.sentences[1] == "before, evaluation 4: 20 of 30 portions, 2 workers"
    assert found.sentences[-1] == f"resume with: cotswold train --run {run.path} --resume"


@pytest.mark.parametrize(
    ("status", "said"), [("interrupted", "; resume=True continues"), (None, "resume with: cots")]
)
def test_a_run_of_an_own_module_is_resumed_by_its_program(
    status: str | None, said: str, tmp_path: Path
) -> None:
    own = RECIPE.replace('layers = [{ type = "linear", features = 8 }]', 'module = "__main__.Net"')
    own = own.replace('{ type = "vectors", source = "x.npy", labels = "file", features = 5 }', OWN_DATA)
    run = RunDirectory.create(tmp_path / "own", dump(parse(own)), {})
    with EventLog(run.events) as log:
        log.write("start", name="x")
        if status is not None:
            log.write("end", status=status, flops_per_second=1e9, training_seconds=5.0, samples=10)
    sentences = " ".join(cotswold.why(run.path).sentences)
    assert said in sentences and "--resume" not in sentences
    assert (
        status
        or f"cotswold.train(module, dataset, directory={str(run.path)!r}, resume=True, ...)" in sentences
    )


def test_stacks_are_of_runs_that_go_on_and_a_directory_without_a_run_is_refused(
    run: RunDirectory, tmp_path: Path
) -> None:
    assert cotswold.why(run.path).state == "not_started"
    with pytest.raises(UserError, match="stacks exist only for a run in progress"):
        cotswold.why(run.path, stacks=True)
    with pytest.raises(RunError, match=r"it has no recipe\.toml"):
        cotswold.why(tmp_path)
