"""The runner with a tiny strategy, which adds each batch's number to one tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from cotswold.checkpoint import Checkpoint, CheckpointManager, StateDict, StateValue
from cotswold.errors import CheckpointError, DivergedError, UserError, describe_exception
from cotswold.run import Event, EventLog, Metrics, Recorder, Stop, read_events
from cotswold.training.strategies.base import Batch, Strategy
from cotswold.training.strategies.phases import Phase
from cotswold.training.trainers.position import Position
from cotswold.training.trainers.sync import SyncTrainer


class Numbers:
    """Endless batches of two images filled with the batch's number."""

    waited_seconds = 0.0
    epoch_steps = 5.0

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Iterator[Batch]:
        while True:
            self.next += 1
            yield Batch(torch.full((2, 1, 1, 1), float(self.next)), None)

    def state_dict(self) -> dict[str, object]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, object]) -> None:
        assert isinstance(state["next"], int)
        self.next = state["next"]


class Sums:
    """Two phases of five steps that sum the numbers seen; stops or fails on request."""

    is_best = False
    should_stop = False
    parameters = 1

    def __init__(self, stop: Stop | None = None, stop_at: int = -1, bad_at: int = -1) -> None:
        self.sum = torch.zeros(1)
        self.begun: list[int] = []
        self.stop, self.stop_at, self.bad_at, self.taken = stop, stop_at, bad_at, 0
        self.phases = [Phase(0, 5, 2), Phase(1, 5, 2)]

    @property
    def flops(self) -> int:
        return 10 * (self.phase + 1)

    def describe(self) -> Mapping[str, object]:
        return {"phase": self.phase, "parameters": 1}

    def enter(self, phase: int, step: int) -> None:
        self.phase = phase

    def begin(self, batches: Iterator[Batch]) -> None:
        self.begun.append(self.phase)

    def train_step(self, batches: Iterator[Batch]) -> Metrics:
        batch = next(batches)
        self.taken += 1
        self.sum += batch.inputs[0, 0, 0, 0]
        if self.stop is not None and self.taken == self.stop_at:
            self.stop.signal = 15
        return Metrics(math.nan if self.taken == self.bad_at else float(self.sum), len(batch.inputs))

    def validate(self) -> Metrics | None:
        return Metrics(float(self.sum), 1)

    def state_dict(self) -> StateDict:
        return {"sum": self.sum, "taken": self.taken}

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        assert isinstance(state["taken"], int)
        self.taken = state["taken"]


def runner_in(folder: Path, strategy: Sums, numbers: Numbers, stop: Stop, log: EventLog) -> SyncTrainer:
    recorder = Recorder(
        log=log,
        checkpoints=CheckpointManager(folder / "checkpoints"),
        best=CheckpointManager(folder / "best"),
        stop=stop,
        checkpoint_seconds=1e9,
    )
    return SyncTrainer(strategy, numbers, recorder)


def newest(folder: Path) -> Checkpoint:
    checkpoint = CheckpointManager(folder / "checkpoints").latest().checkpoint
    assert checkpoint is not None
    return checkpoint


def events(folder: Path, kind: str) -> list[Event]:
    return [event for event in read_events(folder / "events.jsonl") if event["kind"] == kind]


def test_a_phase_shorter_than_a_second_still_has_a_curve(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        assert runner_in(tmp_path, Sums(), Numbers(), Stop(), log).run()
    assert [event["phase_step"] for event in events(tmp_path, "step")] == [1, 2, 3, 4, 5] * 2


def test_every_phase_takes_its_steps_and_is_accounted_for(tmp_path: Path) -> None:
    strategy = Sums()
    with EventLog(tmp_path / "events.jsonl") as log:
        runner = runner_in(tmp_path, strategy, Numbers(), Stop(), log)
        assert runner.run()
    assert strategy.begun == [0, 1]
    assert float(strategy.sum) == sum(range(1, 11))
    assert runner.recorder.usage.samples == 20
    assert runner.recorder.usage.flops == 5 * 2 * 10 + 5 * 2 * 20
    assert [event["phase"] for event in events(tmp_path, "phase_end")] == [0, 1]
    assert [event["phase_step"] for event in events(tmp_path, "validation")] == [0, 2, 4, 5] * 2


@pytest.mark.parametrize("stop_at", [1, 4, 5, 6, 9])
def test_a_stopped_and_resumed_run_sees_what_an_uninterrupted_one_sees(tmp_path: Path, stop_at: int) -> None:
    stop, numbers = Stop(), Numbers()
    with EventLog(tmp_path / "events.jsonl") as log:
        assert not runner_in(tmp_path, Sums(stop, stop_at), numbers, stop, log).run()
        strategy = Sums()
        runner = runner_in(tmp_path, strategy, Numbers(), Stop(), log)
        runner.recorder.resume(runner.resume)
        assert strategy.taken == runner.number == stop_at
        assert runner.run()
    assert float(strategy.sum) == sum(range(1, 11))
    assert runner.recorder.usage.samples == 20
    assert runner.position.total == 10


def test_an_objective_that_is_no_number_stops_the_run_and_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    strategy = Sums(bad_at=8)
    with EventLog(tmp_path / "events.jsonl") as log, pytest.raises(DivergedError, match=r"step 8.*00000005"):
        runner_in(tmp_path, strategy, Numbers(), Stop(), log).run()
    checkpoint = newest(tmp_path)
    assert checkpoint.step == 5
    assert float(checkpoint.read("sum")) == sum(range(1, 6))


def test_values_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    strategy = Sums()
    strategy.sum += math.inf
    with EventLog(tmp_path / "events.jsonl") as log, pytest.raises(DivergedError):
        runner_in(tmp_path, strategy, Numbers(), Stop(), log).run()
    assert CheckpointManager(tmp_path / "checkpoints").paths() == []


def test_the_best_validation_is_kept_apart(tmp_path: Path) -> None:
    strategy = Sums()
    strategy.is_best = True
    with EventLog(tmp_path / "events.jsonl") as log:
        runner_in(tmp_path, strategy, Numbers(), Stop(), log).run()
    best = CheckpointManager(tmp_path / "best").latest().checkpoint
    assert best is not None
    assert float(best.read("sum")) == sum(range(1, 11))


def test_a_phase_without_an_end_goes_on_until_the_strategy_says_so(tmp_path: Path) -> None:
    class Open(Sums):
        @property
        def should_stop(self) -> bool:  # type: ignore[override]  # the others never do
            return self.taken == 7

    strategy = Open()
    strategy.phases = [Phase(0, None, None)]
    with EventLog(tmp_path / "events.jsonl") as log:
        assert runner_in(tmp_path, strategy, Numbers(), Stop(), log).run()
    assert newest(tmp_path).step == 7
    assert [event["phase_step"] for event in events(tmp_path, "validation")] == [0]


def test_a_checkpoint_of_a_phase_that_the_run_does_not_have_is_refused(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        assert runner_in(tmp_path, Sums(), Numbers(), Stop(), log).run()
        strategy = Sums()
        strategy.phases = [Phase(0, 5, 2)]
        with pytest.raises(CheckpointError, match="a phase that this run does not have"):
            runner_in(tmp_path, strategy, Numbers(), Stop(), log).resume(newest(tmp_path))


class Nested(Sums):
    def state_dict(self) -> StateDict:
        return {"model": {"sum": self.sum}}  # type: ignore[dict-item]  # as many programs do


class Silent(Sums):
    def train_step(self, batches: Iterator[Batch]) -> Metrics:
        super().train_step(batches)
        return None  # type: ignore[return-value]  # forgotten


class Live(Sums):
    def train_step(self, batches: Iterator[Batch]) -> Metrics:
        return Metrics(torch.ones(()), 2)  # type: ignore[arg-type]  # the loss as autograd has it


class Bare(Sums):
    def validate(self) -> Metrics | None:
        return 0.3  # type: ignore[return-value]  # the loss alone


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (Nested, "Nested.state_dict returned a dict for 'model'; it must be flat: .* and plain values"),
        (Silent, "Silent.train_step returned None; it must return Metrics"),
        (Live, r"Live.train_step returned a Tensor for the loss.*float\(value.detach\(\)\)"),
        (Bare, "Bare.validate returned a float; it must return Metrics"),
    ],
)
def test_what_a_strategy_must_not_answer_is_named(tmp_path: Path, kind: type[Sums], wanted: str) -> None:
    strategy = kind()
    with EventLog(tmp_path / "events.jsonl") as log, pytest.raises(UserError, match=wanted):
        runner_in(tmp_path, strategy, Numbers(), Stop(), log).run()
    assert strategy.taken <= 1


def test_a_misspelt_verb_is_found_before_training(tmp_path: Path) -> None:
    class Misspelt:
        """`SumArithmetic` with a verb of another name."""

        is_best = should_stop = False
        parameters = flops = phases = begin = enter = describe = validate = print
        state_dict = load_state_dict = trainstep = print

    with (
        EventLog(tmp_path / "events.jsonl") as log,
        pytest.raises(UserError, match="Misspelt has no method train_step; it has trainstep"),
    ):
        runner_in(tmp_path, Misspelt(), Numbers(), Stop(), log)  # type: ignore[arg-type]  # misspelt


def test_a_subclass_of_the_base_class_may_assign_properties_but_must_have_the_methods(tmp_path: Path) -> None:
    class Lacking(Strategy):
        """A strategy without most methods."""

        def __init__(self) -> None:
            self.phases = [Phase(0, 5, 2)]  # type: ignore[misc]  # a property in the base class
            self.parameters = self.flops = 1  # type: ignore[misc]  # likewise

        def describe(self) -> Mapping[str, object]:
            return {"phase": 0}

        def enter(self, phase: int, step: int) -> None:
            """Need no position."""

        def validate(self) -> None:
            return None

        def state_dict(self) -> StateDict:
            return {}

        def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
            """Have no state."""

    with (
        EventLog(tmp_path / "events.jsonl") as log,
        pytest.raises(UserError, match=r"Lacking has no method train_step; cotswold\.training\.Strategy"),
    ):
        runner_in(tmp_path, Lacking(), Numbers(), Stop(), log)  # type: ignore[abstract, arg-type]  # lacking

    class Whole(Lacking):
        def train_step(self, batches: Iterator[Batch]) -> Metrics:
            return Metrics(1.0, len(next(batches).inputs))

    with EventLog(tmp_path / "events.jsonl") as log:
        assert runner_in(tmp_path, Whole(), Numbers(), Stop(), log).run()  # type: ignore[abstract, arg-type]  # a strategy of the test, with what it is asked for
    assert newest(tmp_path).step == 5


def test_an_exception_of_a_strategy_says_where_in_its_package(tmp_path: Path) -> None:
    class Broken(Sums):
        def train_step(self, batches: Iterator[Batch]) -> Metrics:
            return super().train_step(iter(()))

    with EventLog(tmp_path / "events.jsonl") as log, pytest.raises(StopIteration) as raised:
        runner_in(tmp_path, Broken(), Numbers(), Stop(), log).run()
    assert "test_sync.py, line" in describe_exception(raised.value) and describe_exception(
        raised.value
    ).endswith("train_step")


class Noisy(Sums):
    """Adds random noise, and keeps no random state."""

    def train_step(self, batches: Iterator[Batch]) -> Metrics:
        self.sum += torch.rand(1)
        return super().train_step(batches)


def test_a_strategy_that_keeps_no_random_state_draws_the_same_after_a_resume(tmp_path: Path) -> None:
    sums = []
    for stop_at in (-1, 4):
        folder, stop = tmp_path / str(stop_at), Stop()
        folder.mkdir()
        torch.manual_seed(0)
        with EventLog(folder / "events.jsonl") as log:
            strategy: Sums = Noisy(stop, stop_at)
            if not runner_in(folder, strategy, Numbers(), stop, log).run():
                torch.manual_seed(7)
                strategy = Noisy()
                runner = runner_in(folder, strategy, Numbers(), Stop(), log)
                runner.recorder.resume(runner.resume)
                assert runner.run()
        sums.append(float(strategy.sum))
    assert sums[0] == sums[1]


def test_a_checkpoint_without_a_random_state_is_gone_on_with(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        runner = runner_in(tmp_path, Sums(), Numbers(), Stop(), log)
        state = {"strategy": {"taken": 3}, "batches": {"next": 3}, "position": vars(Position(0, 3, 3))}
        more: dict[str, object] = {"ended": [], "account": {}}
        runner.recorder.checkpoints.save(3, {"sum": torch.full((1,), 6.0)}, {**state, **more})
        runner.resume(newest(tmp_path))
        assert runner.run()
    assert float(runner.strategy.state_dict()["sum"]) == sum(range(1, 11))  # type: ignore[arg-type]  # a tensor
