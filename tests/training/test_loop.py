"""The loop with a strategy small enough to see through: it adds each batch's number to one tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cotswold.checkpoint import Checkpoint, Checkpoints, SealedPiece
from cotswold.errors import DivergedError
from cotswold.run import Account, Event, EventLog, Stop, read_events
from cotswold.training.loop import Loop, position_from
from cotswold.training.strategy import Batch, Measured


class Numbers:
    """Endless batches of two pictures that all hold the batch's number."""

    waited_seconds = 0.0

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Iterator[Batch]:
        while True:
            self.next += 1
            yield Batch(torch.full((2, 1, 1, 1), float(self.next)), None)

    def state_dict(self) -> dict[str, object]:
        return {"next": self.next}


class Sums:
    """Two phases of five steps that sum the numbers seen; stops or breaks when told."""

    phases = 2
    improved = False
    parameters = 1

    def __init__(self, stop: Stop | None = None, stop_at: int = -1, bad_at: int = -1) -> None:
        self.sum = torch.zeros(1)
        self.begun: list[int] = []
        self.stop, self.stop_at, self.bad_at, self.taken = stop, stop_at, bad_at, 0

    def steps(self, phase: int) -> int:
        return 5

    def describe(self, phase: int) -> Mapping[str, object]:
        return {"stack": phase, "parameters": 1}

    def flops(self, phase: int) -> int:
        return 10 * (phase + 1)

    def begin(self, phase: int, batch: Batch) -> None:
        self.begun.append(phase)

    def advance(self, phase: int, step: int, batch: Batch) -> Measured:
        self.taken += 1
        self.sum += batch.pictures[0, 0, 0, 0]
        if self.stop is not None and self.taken == self.stop_at:
            self.stop.signal = 15
        return Measured(math.nan if self.taken == self.bad_at else float(self.sum))

    def validate(self, phase: int) -> Measured | None:
        return Measured(float(self.sum))

    def interval(self, phase: int) -> int:
        return 2

    def finished(self, phase: int) -> bool:
        return False

    def tensors(self, phase: int, step: int) -> dict[str, Tensor]:
        return {"sum": self.sum}

    def state(self) -> dict[str, object]:
        return {}

    def apart(self, phase: int, step: int) -> Iterable[SealedPiece]:
        return ()

    def take_up(self, checkpoint: Checkpoint, phase: int, step: int) -> None:
        pass

    def restored(self, tensors: Mapping[str, Tensor], state: Mapping[str, object]) -> None:
        pass


def loop_in(folder: Path, strategy: Sums, numbers: Numbers, stop: Stop, log: EventLog) -> Loop:
    return Loop(
        strategy=strategy,
        pictures=numbers,
        log=log,
        checkpoints=Checkpoints(folder / "checkpoints"),
        best=Checkpoints(folder / "best"),
        account=Account(),
        stop=stop,
        checkpoint_seconds=1e9,
    )


def events(folder: Path, kind: str) -> list[Event]:
    return [event for event in read_events(folder / "events.jsonl") if event["kind"] == kind]


def test_a_phase_shorter_than_a_second_still_has_a_curve(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        assert loop_in(tmp_path, Sums(), Numbers(), Stop(), log).run()
    assert [event["at"] for event in events(tmp_path, "step")] == [1, 2, 3, 4, 5] * 2


def test_every_phase_takes_its_steps_and_is_accounted_for(tmp_path: Path) -> None:
    strategy = Sums()
    with EventLog(tmp_path / "events.jsonl") as log:
        loop = loop_in(tmp_path, strategy, Numbers(), Stop(), log)
        assert loop.run()
    assert strategy.begun == [0, 1]
    assert float(strategy.sum) == sum(range(1, 11))
    assert loop.account.patterns == 20
    assert loop.account.flops == 5 * 2 * 10 + 5 * 2 * 20
    assert [event["stack"] for event in events(tmp_path, "stack_end")] == [0, 1]
    assert [event["at"] for event in events(tmp_path, "validation")] == [0, 2, 4, 5] * 2


@pytest.mark.parametrize("stop_at", [1, 4, 5, 6, 9])
def test_a_stopped_and_resumed_run_sees_what_an_uninterrupted_one_sees(tmp_path: Path, stop_at: int) -> None:
    stop, numbers = Stop(), Numbers()
    with EventLog(tmp_path / "events.jsonl") as log:
        assert not loop_in(tmp_path, Sums(stop, stop_at), numbers, stop, log).run()
        checkpoint = Checkpoints(tmp_path / "checkpoints").latest().checkpoint
        assert checkpoint is not None
        resumed, strategy, later = Numbers(), Sums(), Stop()
        resumed.next = checkpoint.state["pictures"]["next"]  # type: ignore[index]  # JSON
        checkpoint.read_into("sum", strategy.sum)
        loop = loop_in(tmp_path, strategy, resumed, later, log)
        loop.position = position_from(checkpoint.state)
        loop.account = Account.restored(checkpoint.state["account"])  # type: ignore[arg-type]  # JSON
        assert loop.run()
    assert float(strategy.sum) == sum(range(1, 11))
    assert loop.account.patterns == 20
    assert loop.position.total == 10


def test_an_objective_that_is_no_number_stops_the_run_and_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    strategy = Sums(bad_at=8)
    with EventLog(tmp_path / "events.jsonl") as log, pytest.raises(DivergedError, match=r"step 8.*00000005"):
        loop_in(tmp_path, strategy, Numbers(), Stop(), log).run()
    checkpoint = Checkpoints(tmp_path / "checkpoints").latest().checkpoint
    assert checkpoint is not None
    assert checkpoint.step == 5
    assert float(checkpoint.read("sum")) == sum(range(1, 6))


def test_values_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    strategy = Sums()
    strategy.sum += math.inf
    with EventLog(tmp_path / "events.jsonl") as log, pytest.raises(DivergedError):
        loop_in(tmp_path, strategy, Numbers(), Stop(), log).run()
    assert Checkpoints(tmp_path / "checkpoints").paths() == []


def test_the_best_validation_is_kept_apart(tmp_path: Path) -> None:
    strategy = Sums()
    strategy.improved = True
    with EventLog(tmp_path / "events.jsonl") as log:
        loop_in(tmp_path, strategy, Numbers(), Stop(), log).run()
    best = Checkpoints(tmp_path / "best").latest().checkpoint
    assert best is not None
    assert float(best.read("sum")) == sum(range(1, 11))
