"""Callbacks of a module that is partitioned over two ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.support.mesh.ranks import on_ranks
from tests.support.training.runs import bits, events, last
from torch import nn
from torch.utils.data import TensorDataset

import cotswold
from cotswold.callbacks import Callback, CallbackContext, EarlyStopping, GradientNorms, ModelEMA, StopTraining
from cotswold.launch import Membership
from cotswold.mesh import Mesh
from cotswold.recipe.schema import SupervisedTraining
from cotswold.run import RunDirectory, Stop
from cotswold.training import Components, Resume, open_module_job
from cotswold.training.distributed import SINGLE_PROCESS, RankContext


class Ending(Callback):
    """Ends the run at a step, or requests a stop."""

    def __init__(self, step: int, act: Callable[[CallbackContext], object]) -> None:
        self._step, self._act = step, act
        self.calls = 0

    def on_step_end(self, context: CallbackContext) -> None:
        self.calls += 1
        if context.step == self._step:
            self._act(context)


def _end(context: CallbackContext) -> None:
    raise StopTraining("enough")


def net() -> nn.Module:
    """Return a convolution with local weights over the map, batch normalisation and a linear layer."""
    torch.manual_seed(4)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2)
    )


def data() -> TensorDataset:
    x = torch.randn(40, 1, 6, 6, generator=torch.Generator().manual_seed(2))
    return TensorDataset(x, (x.mean((1, 2, 3)) > 0).long())


WAYS: dict[str, Callable[[], list[Callback]]] = {
    "end": lambda: [Ending(5, _end)],
    "stop": lambda: [ModelEMA(0.7), GradientNorms(1), Ending(5, lambda context: context.stop.request())],
    "rest": lambda: [ModelEMA(0.7), GradientNorms(1), EarlyStopping(patience=20)],
}


def train(rank_context: RankContext, run: Path, way: str) -> tuple[bool, int]:
    training = SupervisedTraining(
        strategy="supervised", batch_size=8, epochs=3, threads=1, learning_rate=0.05, warmup=0.0
    )
    callbacks = WAYS[way]()
    job = open_module_job(
        net(),
        data(),
        loss="cross_entropy",
        directory=run,
        settings=training,
        validation=0.2,
        resume=Resume.IF_STARTED,
        rank_context=rank_context,
        components=Components(callbacks=callbacks),
    )
    finished = job.train(lambda event: None, Stop())
    return finished, getattr(callbacks[-1], "calls", 0)


def _as_rank(run: str, way: str) -> tuple[bool, int]:
    os.fsync = lambda fd: None  # matters to power cuts alone
    group = dist.new_group()
    assert group is not None
    members = Membership(dist.get_rank(), dist.get_world_size(), ("here",) * dist.get_world_size(), group)
    return train(RankContext(members, Mesh.of("1x2"), members.rank, members.size), Path(run), way)


def norms(run: Path) -> Mapping[Any, Any]:
    found = events(RunDirectory.open(run), "gradient_norms")
    return {
        event["step"]: {name: each for name, each in event.items() if "norm" in name or "layer" in name}
        for event in found
    }


@pytest.mark.slow
def test_a_callback_on_rank_0_ends_all_ranks(tmp_path: Path) -> None:
    assert on_ranks(2, _as_rank, str(tmp_path / "run"), "end") == [(True, 5), (True, 0)]
    run = RunDirectory.open(tmp_path / "run")
    end = events(run, "end")[-1]
    assert (end["status"], end["reason"]) == ("finished", "Ending: enough")
    assert last(run.checkpoints).step == 5
    assert on_ranks(2, _as_rank, str(tmp_path / "run"), "end") == [(True, 0)] * 2  # complete on both
    assert "Ending ended the run (enough)" in str(events(run, "already_complete")[-1]["reason"])


@pytest.mark.slow
def test_averages_and_norms_on_ranks_are_those_of_one_process_and_resume_to_the_bit(tmp_path: Path) -> None:
    assert train(SINGLE_PROCESS, tmp_path / "alone", "rest") == (True, 0)
    assert on_ranks(2, _as_rank, str(tmp_path / "whole"), "rest") == [(True, 0)] * 2
    alone, whole = (cotswold.Run(tmp_path / name).load(net()) for name in ("alone", "whole"))
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(whole.state_dict()[name], value, rtol=1e-3, atol=1e-4)
    one, other = norms(tmp_path / "alone"), norms(tmp_path / "whole")
    assert one.keys() == other.keys() and len(one) == 12
    for step, expected in one.items():
        assert other[step] == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert on_ranks(2, _as_rank, str(tmp_path / "parts"), "stop") == [(False, 5), (False, 0)]
    assert on_ranks(2, _as_rank, str(tmp_path / "parts"), "rest") == [(True, 0)] * 2
    both = [bits(RunDirectory.open(tmp_path / name)) for name in ("parts", "whole")]
    assert any(name.startswith("raw.") for name in both[0][0])
    assert both[0][0] == both[1][0]
