"""Runs of whole-set optimisation: stop, end, and resumption."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.training.batch_runs import (
    events,
    events_of,
    regression,
    same,
    step_of,
    trained,
)
from torch import Tensor

import cotswold
from cotswold import training
from cotswold.analysis.run_history import History
from cotswold.errors import BusyError, MachineError, RecipeError, ResumableError, RunError
from cotswold.run import EventLog, Stop
from cotswold.run.stop import NOTHING_SAVED
from cotswold.shards.runtime.work import PortionSum
from cotswold.training.full_batch.objective import DenseObjective
from cotswold.ui.describe import describe


def test_a_limit_of_time_saves_and_stops(blobs: Path, stores: Path, tmp_path: Path) -> None:
    stop = Stop()
    trained(blobs, tmp_path / "run", stores, "price.max_hours=1e-7", stop=stop)
    (end,) = events(tmp_path / "run", "end")
    assert stop.is_limited and end["status"] == "limited"
    assert end["reason"] == "price.max_hours = 1e-07 is reached"
    trained(None, tmp_path / "run", stores, "price.max_hours=1")
    assert events(tmp_path / "run", "end")[-1]["status"] == "finished"


def test_a_small_decrease_ends_a_run_and_a_smaller_tolerance_continues_it(
    blobs: Path, stores: Path, tmp_path: Path
) -> None:
    place, whole, words = tmp_path / "run", tmp_path / "whole", "training.max_iterations=12"
    trained(blobs, place, stores, words, "training.loss_tolerance=0.02")
    losses = [float(str(each["loss"])) for each in events(place, "step")]
    falls = [(before - after) / max(1.0, after) for before, after in pairwise(losses)]
    assert falls[-1] <= 0.02 < min(falls[:-1], default=1.0) and len(losses) < 12
    (end,) = events(place, "phase_end")
    assert end["reason"] == "an iteration decreased the loss by at most training.loss_tolerance"
    trained(None, place, stores)
    assert events(place, "already_complete"), "nothing has changed"
    trained(None, place, stores, "training.loss_tolerance=1e-9")
    trained(blobs, whole, stores, words)
    assert [each["loss"] for each in events(place, "step")] == [
        each["loss"] for each in events(whole, "step")
    ]
    with pytest.raises(RecipeError, match="remove sample_fraction"):
        trained(blobs, tmp_path / "new", stores, "training.loss_tolerance=1", "training.sample_fraction=0.5")


class Ticks:
    """A clock that advances on request."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_run_stops_before_the_evaluation_that_would_pass_its_limit(
    blobs: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks, add = Ticks(), DenseObjective.add

    def slowly(self: DenseObjective, samples: list[int], gradient: Tensor | None) -> PortionSum:
        ticks.now += 1
        return add(self, samples, gradient)

    monkeypatch.setattr(DenseObjective, "add", slowly)
    words = ("price.rent_dollars_per_hour=3600", "price.max_dollars=40", "training.portion_size=32")
    job = training.open_job(blobs, tmp_path / "run", overrides=words, stores=stores)
    recorder = job._recorder  # clocks are arguments of what it makes
    monkeypatch.setattr(
        type(job),
        "_recorder",
        lambda self, *given: replace(recorder(*given), clock=ticks, run_clock=lambda: ticks.now - 1000),
    )
    assert not job.train(lambda event: None, Stop())
    (end,) = events(tmp_path / "run", "end")
    evaluation = -(-265 // 32)  # seconds, one a portion
    assert end["status"] == "limited" and ticks.now - 1000 == end["dollars"]
    assert 40 - evaluation <= float(str(end["dollars"])) <= 40
    assert (ticks.now - 1000) % evaluation == 0  # none was begun in vain


def test_a_session_that_saved_nothing_is_said_to_be_lost_and_its_time_counts(
    blobs: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "run"

    def failing(self: DenseObjective, samples: list[int], gradient: Tensor | None) -> PortionSum:
        raise ResumableError("a server is gone")

    job = training.open_job(blobs, place, stores=stores)
    monkeypatch.setattr(DenseObjective, "add", failing)
    monkeypatch.setattr("cotswold.training.trainers.full_batch.FullBatchTrainer._save", lambda self: None)
    how = rf"resume the run: cotswold train --run {place} --resume \({NOTHING_SAVED}\)$"
    with pytest.raises(MachineError, match=how):
        job.train(lambda event: None, Stop())
    (failed,) = events(place, "end")
    assert str(failed["reason"]).endswith("the run starts again)")
    with EventLog(place / "events.jsonl", began=time.monotonic() - 3600) as log:
        log.write("cluster_exited", name="server 0", reason="was killed")  # an hour later
    monkeypatch.undo()
    stop, seen = Stop(), list[Mapping[str, object]]()
    trained(None, place, stores, "price.max_hours=1", watch=seen.append, stop=stop)
    (anew,) = events(place, "restarted")
    assert describe(anew) == NOTHING_SAVED
    assert float(str(anew["lost_seconds"])) >= 3600 and stop.is_limited
    history = History.from_events(events_of(place))
    assert history.resumptions == 1 and history.lost_seconds >= 3600


def test_a_corrected_recipe_begins_where_another_failed_before_its_first_step(
    blobs: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: DenseObjective, samples: list[int], gradient: Tensor | None) -> PortionSum:
        raise MachineError("nobody answers")

    monkeypatch.setattr(DenseObjective, "add", failing)
    monkeypatch.setattr("cotswold.training.trainers.full_batch.FullBatchTrainer._save", lambda self: None)
    with pytest.raises(MachineError, match="nobody answers"):
        trained(blobs, tmp_path / "run", stores)
    late = training.open_job(None, tmp_path / "run", stores=stores, resume=training.Resume.ALWAYS)
    monkeypatch.undo()
    trained(blobs, tmp_path / "run", stores, "training.max_iterations=3")
    assert len(events(tmp_path / "run", "step")) == 3 and len(events(tmp_path / "run", "start")) == 1
    with pytest.raises(BusyError, match="another command has created a new run"):
        late.train(lambda event: None, Stop())
    with pytest.raises(RunError, match="already holds a run"):
        trained(blobs, tmp_path / "run", stores)


def test_progress_and_iterations_count_the_same_evaluations(
    blobs: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cotswold.training.trainers.full_batch.SHOW_SECONDS", 0.0)
    seen = list[Mapping[str, object]]()
    words = (
        "training.method=cg",
        "training.line_search=bunyip",
        "training.portion_size=4",
        "training.max_iterations=4",
    )
    trained(blobs, tmp_path / "run", stores, *words, watch=seen.append)
    numbers = [each["evaluation"] for each in seen if each["kind"] == "portions"]
    last = [each for each in seen if each["kind"] == "step"][-1]
    asked = int(str(last["evaluations"])) + int(str(last["partial_evaluations"]))
    assert int(str(last["partial_evaluations"])) > 0 and list(dict.fromkeys(numbers)) == list(
        range(1, asked + 1)
    )
    said = describe(last)
    assert said is not None and f"{asked} evaluations ({last['partial_evaluations']} of them slopes" in said


def test_a_finished_run_goes_on_where_more_iterations_are_asked_for(
    blobs: Path, stores: Path, tmp_path: Path
) -> None:
    whole = trained(blobs, tmp_path / "whole", stores)
    trained(blobs, tmp_path / "parts", stores, "training.max_iterations=5")
    assert same(whole, trained(None, tmp_path / "parts", stores, "training.max_iterations=12"))


def test_patience_ends_a_run_and_the_best_point_is_kept(blobs: Path, stores: Path, tmp_path: Path) -> None:
    trained(blobs, tmp_path / "run", stores, "training.max_iterations=200", "training.patience=3")
    judged = [float(str(event["loss"])) for event in events(tmp_path / "run", "validation")]
    best = judged.index(min(judged))
    assert len(judged) - 1 - best == 3
    assert training.trained_layers(cotswold.run.RunDirectory(tmp_path / "run")).step == best
    (over,) = events(tmp_path / "run", "phase_end")
    assert over["reason"] == "no better validation 3 times"


def test_a_run_that_patience_ended_goes_on_where_more_is_given(
    blobs: Path, stores: Path, tmp_path: Path
) -> None:
    place, words = tmp_path / "run", ("training.max_iterations=200", "training.patience=3")
    ended = trained(blobs, place, stores, *words)
    assert same(ended, trained(None, place, stores))  # the same patience is over
    more = trained(None, place, stores, "training.patience=5")
    assert step_of(more) == step_of(ended) + 2
    assert events(place, "phase_end")[-1]["reason"] == "no better validation 5 times"


def test_a_run_that_ended_at_its_tolerance_is_not_trained_on_unless_it_is_lowered(
    blobs: Path, stores: Path, tmp_path: Path
) -> None:
    place = tmp_path / "run"
    ended = trained(blobs, place, stores, "training.max_iterations=200", "training.tolerance=0.05")
    assert events(place, "phase_end")[-1]["reason"] == "the gradient norm is at most training.tolerance"
    assert same(ended, trained(None, place, stores))
    assert len(events(place, "step")) == step_of(ended)
    trained(None, place, stores, "training.tolerance=0.03")
    assert len(events(place, "step")) > step_of(ended)


def test_a_run_that_stopped_in_its_first_iteration_is_not_begun_twice(
    blobs: Path, stores: Path, tmp_path: Path
) -> None:
    place, stop = tmp_path / "run", Stop()

    def ask(event: Mapping[str, object]) -> None:
        if event["kind"] == "validation":
            stop.signal = 15

    trained(blobs, place, stores, watch=ask, stop=stop)
    trained(None, place, stores)
    assert [event["step"] for event in events(place, "validation")] == list(range(13))
    assert len(events(place, "phase_start")) == 1


def test_the_first_iteration_is_saved_whenever_a_checkpoint_is_due(
    blobs: Path, stores: Path, tmp_path: Path
) -> None:
    trained(blobs, tmp_path / "run", stores, "training.checkpoint_minutes=60")
    assert [event["step"] for event in events(tmp_path / "run", "checkpoint")] == [1, 12]


@pytest.mark.parametrize("method", ["lbfgs", "cg"])
def test_a_run_ends_by_itself_at_rounding_level(method: str, tmp_path: Path) -> None:
    run = regression(tmp_path / "run", method=method)
    (over,) = events(tmp_path / "run", "phase_end")
    assert "converged" in str(over["reason"]) and int(str(over["step"])) < 100
    described = cotswold.ui.describe.describe(over)
    assert described is not None and "converged" in described
    assert regression(tmp_path / "run", resume=True).status == "finished"  # and stays at its end
    assert len(events(tmp_path / "run", "phase_end")) == 1
    steps = [event for event in run.events if event["kind"] == "step"]
    assert min(float(str(each["gradient_norm"])) for each in steps) < 1e-6


def test_a_run_that_is_stopped_converges_at_the_same_iteration(tmp_path: Path) -> None:
    regression(tmp_path / "whole")
    (whole,) = events(tmp_path / "whole", "phase_end")
    end = int(str(whole["step"]))
    regression(tmp_path / "parts", max_iterations=end - 4)
    regression(tmp_path / "parts", max_iterations=200, resume=True)
    assert events(tmp_path / "parts", "phase_end")[-1]["step"] == end


@pytest.mark.parametrize(
    "settings", [{"convergence_patience": 0}, {"sample_fraction": 0.5, "cycle_iterations": 30}]
)
def test_it_does_not_converge_where_it_must_not(settings: dict[str, object], tmp_path: Path) -> None:
    regression(tmp_path, max_iterations=60, **settings)
    (over,) = events(tmp_path, "phase_end")
    assert "converged" not in str(over["reason"])
