"""Whole runs of every strategy, through the door that the command uses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.small import greedy, supervised
from torch import Tensor

from cotswold.run import Checkpoint, Checkpoints, Event, RunDirectory, read_events
from cotswold.training import Job, Resume, Stop, open_job
from cotswold.training import loop as loops


def started(text: str, run: Path, stores: Path) -> Job:
    recipe = run.with_suffix(".toml")
    recipe.write_text(text)
    return open_job(recipe, run, stores=stores)


def resumed(run: Path, stores: Path) -> Job:
    return open_job(None, run, stores=stores, resume=Resume.ALWAYS)


def finish(job: Job) -> RunDirectory:
    assert job.train(watch=lambda event: None, stop=Stop())
    return job.run


def stop_after(job: Job, step: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Train until the event of a step asks for a stop, as a signal would in the middle of that step."""
    stop = Stop()

    def watch(event: Mapping[str, object]) -> None:
        if event["kind"] == "step" and event["step"] == step:
            stop.signal = 2

    monkeypatch.setattr(loops, "EVENT_SECONDS", 0.0)
    return job.train(watch=watch, stop=stop)


def events(run: RunDirectory, kind: str) -> list[Event]:
    return [event for event in read_events(run.events) if event["kind"] == kind]


def losses(run: RunDirectory) -> list[float]:
    return [float(str(event["loss"])) for event in events(run, "validation")]


def last(folder: Path) -> Checkpoint:
    return Checkpoint(Checkpoints(folder).paths()[-1])


def bits(run: RunDirectory) -> tuple[dict[str, list[int]], dict[str, Any]]:
    """Every byte of the last checkpoint's tensors, and its state but for the seconds."""
    checkpoint = last(run.checkpoints)
    state: dict[str, Any] = json.loads(json.dumps(checkpoint.state))
    state["account"].pop("seconds")
    tensors = {name: _bytes(tensor) for name, tensor in checkpoint.tensors().items()}
    return tensors, state


def _bytes(tensor: Tensor) -> list[int]:
    values: list[int] = tensor.reshape(-1).contiguous().view(torch.uint8).tolist()
    return values


def recipe_of(strategy: str, pictures: Path) -> str:
    return supervised(pictures) if strategy == "supervised" else greedy(pictures, strategy=strategy)


@pytest.fixture(scope="module")
def uninterrupted(
    pictures: Path, stores: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, RunDirectory]:
    """A finished run of every strategy."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        strategy: finish(started(recipe_of(strategy, pictures), folder / strategy, stores))
        for strategy in ("greedy", "joint", "supervised")
    }


@pytest.mark.parametrize("strategy", ["greedy", "joint", "supervised"])
def test_a_run_lowers_its_objective_on_held_out_pictures(
    uninterrupted: dict[str, RunDirectory], strategy: str
) -> None:
    run = uninterrupted[strategy]
    for stack in {event["stack"] for event in events(run, "validation")}:
        first, *_, final = [e["loss"] for e in events(run, "validation") if e["stack"] == stack]
        assert isinstance(first, float) and isinstance(final, float)
        assert final < 0.9 * first, (stack, first, final)
    assert [event["status"] for event in events(run, "end")] == ["finished"]


@pytest.mark.parametrize(
    ("strategy", "step"),
    [(strategy, step) for strategy in ("greedy", "joint", "supervised") for step in (1, 5, 9)]
    + [("greedy", 14), ("greedy", 15), ("supervised", 18)],
)
def test_a_stopped_run_goes_on_with_the_same_bits(
    uninterrupted: dict[str, RunDirectory],
    pictures: Path,
    stores: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    strategy: str,
    step: int,
) -> None:
    assert not stop_after(started(recipe_of(strategy, pictures), tmp_path / "run", stores), step, monkeypatch)
    assert last(tmp_path / "run" / "checkpoints").step == step
    run = finish(resumed(tmp_path / "run", stores))
    assert bits(run) == bits(uninterrupted[strategy])
    assert [event["status"] for event in events(run, "end")] == ["interrupted", "finished"]


@pytest.mark.parametrize("strategy", ["greedy", "joint", "supervised"])
def test_a_run_stopped_after_every_step_goes_on_with_the_same_bits(
    uninterrupted: dict[str, RunDirectory],
    pictures: Path,
    stores: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    strategy: str,
) -> None:
    job = started(recipe_of(strategy, pictures), tmp_path / "run", stores)
    step = 1
    while not stop_after(job, step, monkeypatch):
        job, step = resumed(tmp_path / "run", stores), step + 1
    assert bits(job.run) == bits(uninterrupted[strategy])


def test_a_stop_asked_for_before_the_first_step_takes_none(
    uninterrupted: dict[str, RunDirectory], pictures: Path, stores: Path, tmp_path: Path
) -> None:
    job = started(greedy(pictures), tmp_path / "run", stores)
    assert not job.train(watch=lambda event: None, stop=Stop(signal=15))
    assert last(job.run.checkpoints).step == 0
    assert bits(finish(resumed(job.run.path, stores))) == bits(uninterrupted["greedy"])


def test_a_finished_run_is_resumed_without_another_step(
    uninterrupted: dict[str, RunDirectory], stores: Path
) -> None:
    run = uninterrupted["joint"]
    before = bits(run)
    finish(resumed(run.path, stores))
    assert bits(run) == before


def test_a_run_killed_before_its_first_checkpoint_begins_anew(
    uninterrupted: dict[str, RunDirectory], pictures: Path, stores: Path, tmp_path: Path
) -> None:
    job = started(greedy(pictures), tmp_path / "run", stores)  # killed here: nothing but the recipe
    assert bits(finish(resumed(job.run.path, stores))) == bits(uninterrupted["greedy"])
