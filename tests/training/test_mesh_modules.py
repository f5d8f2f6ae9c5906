"""A program's own module on a grid of ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.support.mesh.ranks import on_ranks
from tests.support.training.runs import bits, events, last, losses
from torch import nn
from torch.utils.data import TensorDataset

from cotswold.launch import Membership
from cotswold.mesh import Mesh
from cotswold.recipe.schema import SupervisedTraining
from cotswold.run import RunDirectory, Stop
from cotswold.training import Resume, open_module_job
from cotswold.training.distributed import SINGLE_PROCESS, RankContext


class Net(nn.Sequential):
    """A convolution with batch normalisation and a linear layer on its map."""

    def __init__(self) -> None:
        torch.manual_seed(4)
        super().__init__(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2)
        )


def data() -> TensorDataset:
    x = torch.randn(40, 1, 6, 6, generator=torch.Generator().manual_seed(2))
    return TensorDataset(x, (x.mean((1, 2, 3)) > 0).long())


def train(rank_context: RankContext, run: Path, stop_at: int) -> bool:
    stop = Stop()

    def watch(event: Mapping[str, object]) -> None:
        if event["kind"] == "step" and event["step"] == stop_at:
            stop.signal = 2

    training = SupervisedTraining(strategy="supervised", batch_size=8, epochs=3, threads=1)
    job = open_module_job(
        Net(),
        data(),
        loss="cross_entropy",
        directory=run,
        settings=training,
        validation=0.2,
        resume=Resume.IF_STARTED,
        rank_context=rank_context,
    )
    return job.train(watch, stop)


def _as_rank(grid: str, run: str, stop_at: int) -> bool:
    os.fsync = lambda fd: None  # matters to power cuts alone
    group = dist.new_group()
    assert group is not None
    members = Membership(dist.get_rank(), dist.get_world_size(), ("here",) * dist.get_world_size(), group)
    return train(RankContext(members, Mesh.of(grid), members.rank, members.size), Path(run), stop_at)


def trained(grid: str, run: Path, stop_at: int = 0) -> RunDirectory:
    assert set(on_ranks(2, _as_rank, grid, str(run), stop_at)) == {stop_at == 0}
    return RunDirectory.open(run)


@pytest.mark.slow
def test_a_module_on_a_grid_is_that_of_one_process_and_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    assert train(SINGLE_PROCESS, tmp_path / "alone", 0)
    alone = RunDirectory.open(tmp_path / "alone")
    whole = trained("1x2", tmp_path / "whole")
    torch.testing.assert_close(losses(alone), losses(whole), rtol=1e-3, atol=1e-5)
    assert sorted(last(alone.checkpoints).names) == sorted(last(whole.checkpoints).names)
    assert events(whole, "end")[0]["flops"] == pytest.approx(events(alone, "end")[0]["flops"], rel=0.2)
    trained("1x2", tmp_path / "parts", stop_at=5)
    both = [bits(each) for each in (trained("1x2", tmp_path / "parts"), whole)]
    for _, state in both:
        state["account"].pop("wire_bytes")  # ranks that find each other again send more
    assert both[0] == both[1]
