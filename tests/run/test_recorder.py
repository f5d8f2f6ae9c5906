"""Records of runs without steps: a number and words give their position."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cotswold.checkpoint import Checkpoint, CheckpointManager, TensorChunk
from cotswold.errors import CheckpointError, DivergedError
from cotswold.recipe.schema import Price
from cotswold.run import Event, EventLog, Metrics, Recorder, Stop, read_events


class Clock:
    """A clock that stands still until it is set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def recorder_in(folder: Path, log: EventLog, clock: Clock, sent: Callable[[], int] = lambda: 0) -> Recorder:
    return Recorder(
        log=log,
        checkpoints=CheckpointManager(folder / "checkpoints"),
        best=CheckpointManager(folder / "best"),
        stop=Stop(),
        checkpoint_seconds=60,
        metadata={"recipe": "mine"},
        sent_bytes=sent,
        clock=clock,
    )


def values(number: float) -> list[TensorChunk]:
    return [TensorChunk("x", torch.tensor([number]))]


def events(folder: Path, kind: str) -> list[Event]:
    return [event for event in read_events(folder / "events.jsonl") if event["kind"] == kind]


def test_evaluations_of_unequal_size_weigh_in_means_by_their_samples(tmp_path: Path, clock: Clock) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        recorder = recorder_in(tmp_path, log, clock, sent=lambda: 7)
        recorder.start()
        recorder.add(Metrics(2.0, 1000, {"slope": 1.0}), 10, "evaluation 1")
        recorder.add(Metrics(1.0, 250, {"slope": 3.0}), 10, "evaluation 2")
        clock.now += 5
        means = recorder.means(waited_seconds=1.5)
        assert (means.count, means.values["loss"], means.values["slope"]) == (2, 1.8, 1.4)
        assert (means.values["samples_per_second"], means.values["waited_seconds"]) == (250, 1.5)
        recorder.add_elapsed()
        recorder.end("finished", Price())
    (end,) = events(tmp_path, "end")
    assert (end["samples"], end["flops"], end["wire_bytes"]) == (1250, 12500, 7)
    assert end["training_seconds"] == 5


def test_a_checkpoint_is_due_once_its_time_has_passed_since_the_last(tmp_path: Path, clock: Clock) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        recorder = recorder_in(tmp_path, log, clock)
        clock.now += 1000
        recorder.start()
        due = [recorder.is_save_due]
        clock.now += 61
        due.append(recorder.is_save_due)
        recorder.save(12_345, values(1), {"ledger": [1, 2]}, "12345 samples")
        due.append(recorder.is_save_due)
        clock.now += 61
        recorder.save_best(12_345, values(1), {}, "12345 samples")  # another kind, which does not count
        due.append(recorder.is_save_due)
    assert due == [False, True, False, True]


def saves_of(recorder: Recorder, clock: Clock, seconds: int, takes: float = 0.0) -> list[float]:
    """Return the times of checkpoints of a run that checks each second."""
    began, found = clock.now, []
    while clock.now - began < seconds:
        clock.now += 1
        if recorder.is_save_due:
            found.append(clock.now - began)
            recorder.save(len(found), values(1), {}, "now")
            recorder._save_seconds["checkpoints"] = takes
    return found


def test_the_first_checkpoint_comes_early_and_half_of_the_training_is_lost_at_most(
    tmp_path: Path, clock: Clock
) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        recorder = recorder_in(tmp_path, log, clock)
        recorder.checkpoint_seconds = 300.0
        recorder.start()
        assert saves_of(recorder, clock, 1200) == [16, 33, 67, 135, 271, 543, 844, 1145]
        again = recorder_in(tmp_path, log, clock)
        again.checkpoint_seconds = 300.0
        again.resume(lambda checkpoint: None)
        again.start()
        assert saves_of(again, clock, 700) == [301, 602], "what came before is saved"


def test_checkpoints_that_take_long_are_not_written_one_after_the_other(tmp_path: Path, clock: Clock) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        recorder = recorder_in(tmp_path, log, clock)
        recorder.checkpoint_seconds = 300.0
        recorder.start()
        assert saves_of(recorder, clock, 700, takes=20.0) == [16, 217, 435]


def test_the_account_goes_on_from_the_checkpoint_that_was_taken(tmp_path: Path, clock: Clock) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        recorder = recorder_in(tmp_path, log, clock)
        recorder.add(Metrics(1.0, 40), 2, "the first evaluation")
        recorder.save(40, values(1), {}, "40 samples")
        recorder.add(Metrics(1.0, 40), 2, "the second evaluation")
        recorder.save(80, values(2), {}, "80 samples")

        again = recorder_in(tmp_path, log, clock)

        def use(checkpoint: Checkpoint) -> None:
            if checkpoint.step == 80:
                raise CheckpointError("not this one")

        found = again.resume(use)
    assert found.checkpoint is not None and found.checkpoint.state["recipe"] == "mine"
    assert (again.usage.samples, again.usage.flops) == (40, 80)


def test_numbers_that_are_none_are_told_with_their_place_and_the_last_good_checkpoint(
    tmp_path: Path, clock: Clock
) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        recorder = recorder_in(tmp_path, log, clock)
        with pytest.raises(DivergedError, match="became nan at evaluation 3; no checkpoint was"):
            recorder.add(Metrics(math.nan, 1), 1, "evaluation 3")
        recorder.save(9, values(1), {}, "9 samples")
        with pytest.raises(DivergedError, match=r"x has .* at 10 samples; .*00000009; try a"):
            recorder.save(10, values(math.inf), {}, "10 samples")
    assert [path.name for path in recorder.checkpoints.paths()] == ["00000009"]


def test_the_limit_leaves_time_for_another_save(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly() -> list[TensorChunk]:
        clock.now += 30
        return values(1.0)

    with EventLog(tmp_path / "events.jsonl") as log:
        recorder = recorder_in(tmp_path, log, clock)
        recorder.seconds_max = 100
        recorder.start()
        clock.now += 20
        recorder.save(1, (piece for _ in range(1) for piece in slowly()), {}, "iteration 1")
        clock.now += 19
        assert not recorder.limit_within(0)
        clock.now += 1
        assert recorder.limit_within(0)


def test_limits_and_rent_go_by_the_time_of_the_run_from_its_command_on(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path, ticks=clock, began=clock.now - 40) as log:
        log.write("start_failed", reason="the cluster cannot be opened")
    with EventLog(path, ticks=clock, began=clock.now - 10) as log:
        recorder = recorder_in(tmp_path, log, clock)
        recorder.run_clock, recorder.seconds_max = lambda: log.seconds, 100.0
        recorder.start()
        clock.now += 30
        assert recorder.run_seconds == 80 and log.earlier_seconds == 40
        assert not recorder.limit_within(19) and recorder.limit_within(20)
        recorder.add_elapsed()
        recorder.end("limited", Price(rent_dollars_per_hour=3600))
    (end,) = events(tmp_path, "end")
    assert end["training_seconds"] == 30 and end["dollars"] == 80


def ended(folder: Path, clock: Clock, *losses: float, status: str = "finished") -> Event:
    with EventLog(folder / "events.jsonl") as log:
        recorder = recorder_in(folder, log, clock)
        recorder.start()
        recorder.event("phase_start", phase="layers")
        for loss in losses:
            recorder.add(Metrics(loss, 10), 1, "a step")
        recorder.end(status, Price())
    return events(folder, "end")[-1]


def test_a_loss_that_ends_far_above_where_it_began_is_a_warning_with_the_remedy(
    tmp_path: Path, clock: Clock
) -> None:
    end = ended(tmp_path, clock, 2.3, 40.0, *[3.2e6] * 20)
    said = "the final loss 3.2e+06 is far above the initial loss 2.3; try a smaller learning rate"
    assert end["warning"] == said
    assert "warning" not in ended(tmp_path, clock, 2.3, *[3.2e6] * 20, status="failed")


@pytest.mark.parametrize(
    "losses", [(2.3, 40.0, 2.0, 1.9, 1.8), (2.3, *[1.0] * 20, 900.0), (0.0, 5.0), (-1.0, 5.0), ()]
)
def test_a_loss_that_does_not_is_none(losses: tuple[float, ...], tmp_path: Path, clock: Clock) -> None:
    assert "warning" not in ended(tmp_path, clock, *losses)


def test_a_run_that_goes_on_knows_at_which_loss_it_began(tmp_path: Path, clock: Clock) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        recorder = recorder_in(tmp_path, log, clock)
        recorder.start()
        recorder.event("phase_start", phase="layers")
        recorder.add(Metrics(2.0, 10), 1, "a step")
        recorder.save(1, values(1), {}, "step 1")
        again = recorder_in(tmp_path, log, clock)
        again.resume(lambda checkpoint: None)
        again.add(Metrics(500.0, 10), 1, "a step")
        again.end("finished", Price())
    assert "far above the initial loss 2" in str(events(tmp_path, "end")[-1]["warning"])


@pytest.mark.parametrize(
    "tensor",
    [
        torch.full((3000,), 50.0, dtype=torch.float16),  # whose sum overflows
        torch.full((4,), 2e38),
        torch.tensor([1.0 + 1.0j]),
        torch.ones(2).to(torch.float8_e4m3fn),
    ],
)
def test_finite_values_whose_sum_is_not_are_saved(tensor: torch.Tensor, tmp_path: Path, clock: Clock) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        recorder = recorder_in(tmp_path, log, clock)
        assert recorder.save(1, [TensorChunk("x", tensor)], {}, "step 1").is_dir()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, complex(0, torch.nan)])
def test_values_that_are_not_finite_are_not_saved(value: complex, tmp_path: Path, clock: Clock) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        recorder = recorder_in(tmp_path, log, clock)
        with pytest.raises(DivergedError, match="x has values that are not finite"):
            recorder.save(1, [TensorChunk("x", torch.tensor([value]))], {}, "step 1")


def test_infinities_from_before_training_are_saved_and_new_ones_are_not(tmp_path: Path, clock: Clock) -> None:
    mask = torch.tensor([-math.inf, 0.0])
    with EventLog(tmp_path / "events.jsonl") as log:
        recorder = recorder_in(tmp_path, log, clock)
        recorder.allow_nonfinite({"mask": mask})
        assert recorder.save(1, [TensorChunk("mask", mask)], {}, "step 1").is_dir()
        with pytest.raises(DivergedError, match="mask has"):
            recorder.save(2, [TensorChunk("mask", torch.tensor([math.nan, 0.0]))], {}, "step 2")
