"""Optimisers, precision and clipping of strategy supervised on a grid of ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.support.mesh.ranks import on_ranks
from tests.support.training.runs import bits, events, last, losses
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import TensorDataset

from cotswold.errors import RecipeError, UserError
from cotswold.geometry import Grid
from cotswold.launch import Membership
from cotswold.mesh import Mesh
from cotswold.recipe.schema import SupervisedTraining
from cotswold.run import RunDirectory, Stop
from cotswold.training import Resume, open_module_job
from cotswold.training.components import Components
from cotswold.training.distributed import SINGLE_PROCESS, RankContext


class Net(nn.Sequential):
    """A convolution, and linear layers of which the first is divided unequally over three ranks."""

    def __init__(self) -> None:
        torch.manual_seed(4)
        super().__init__(
            nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(144, 8), nn.Linear(8, 2)
        )


def data() -> TensorDataset:
    x = torch.randn(44, 1, 6, 6, generator=torch.Generator().manual_seed(2))
    return TensorDataset(x.double(), (x.mean((1, 2, 3)) > 0).long())


def own(module: nn.Module) -> Components:
    """Return an optimiser with two groups on the module's parameters, and a scheduler."""
    first, *rest = [each for each in module.children() if list(each.parameters())]
    groups: list[dict[str, Any]] = [
        {"params": [each for layer in rest for each in layer.parameters()]},
        {"params": first.parameters(), "lr": 0.002},
    ]
    scheduler = partial(OneCycleLR, max_lr=[0.01, 0.02], total_steps=30)
    return Components(optimizer=AdamW(groups, lr=0.01), scheduler=scheduler)


def used(module: nn.Module) -> Components:
    optimizer = AdamW(module.parameters())
    for each in module.parameters():
        each.grad = torch.zeros_like(each)
    optimizer.step()
    return Components(optimizer=optimizer)


MADE: dict[str, Callable[[nn.Module], Components]] = {"own": own, "used": used}


def train(rank_context: RankContext, run: Path, stop_at: int, made: str, words: Mapping[str, Any]) -> bool:
    os.fsync = lambda fd: None  # matters to power cuts alone
    stop, module, given = Stop(), Net(), data()
    if words.get("precision", "32") == "32":
        module.double()
    else:
        given = TensorDataset(given.tensors[0].float(), given.tensors[1])

    def watch(event: Mapping[str, object]) -> None:
        if event["kind"] == "step" and event["step"] == stop_at:
            stop.signal = 2

    job = open_module_job(
        module,
        given,
        loss="cross_entropy",
        directory=run,
        settings=SupervisedTraining(**{"batch_size": 8, "epochs": 3, "threads": 1, **words}),
        validation=0.2,
        resume=Resume.IF_STARTED,
        rank_context=rank_context,
        components=MADE[made](module) if made else None,
    )
    return job.train(watch, stop)


def _as_rank(grid: str, run: str, *words: Any) -> bool:
    group = dist.new_group()
    assert group is not None
    members = Membership(dist.get_rank(), dist.get_world_size(), ("here",) * dist.get_world_size(), group)
    return train(RankContext(members, Mesh.of(grid), members.rank, members.size), Path(run), *words)


def trained(grid: str, run: Path, made: str, words: Mapping[str, Any], stop_at: int = 0) -> RunDirectory:
    if grid == "1x1":
        assert train(SINGLE_PROCESS, run, stop_at, made, words) == (stop_at == 0)
    else:
        done = on_ranks(Grid.parse(grid).size, _as_rank, grid, str(run), stop_at, made, words)
        assert {*done} == {stop_at == 0}
    return RunDirectory.open(run)


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("", {"optimizer": "adamw"}),
    "muon": ("", {"optimizer": "muon", "learning_rate": 0.01}),
    "own": ("own", {}),
    "accumulated": ("", {"optimizer": "adagrad", "accumulate": 2, "clip_norm": 0.05}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_grid_computes_the_updates_of_one_process_and_goes_on_with_the_same_bits(
    tmp_path: Path, case: str
) -> None:
    made, words = CASES[case]
    alone, whole = (trained(grid, tmp_path / grid, made, words) for grid in ("1x1", "1x2"))
    # muon computes in bfloat16, and what it rounds in the last layer does not change the probabilities
    tolerance = 5e-3 if case == "muon" else 1e-9
    torch.testing.assert_close(losses(alone), losses(whole), rtol=tolerance, atol=0)
    one, other = last(alone.checkpoints), last(whole.checkpoints)
    assert sorted(one.names) == sorted(other.names)
    for name in one.names if case != "muon" else []:
        torch.testing.assert_close(one.read(name), other.read(name), rtol=10 * tolerance, atol=tolerance)
    trained("1x2", tmp_path / "parts", made, words, stop_at=5)
    both = [bits(each) for each in (trained("1x2", tmp_path / "parts", made, words), whole)]
    for _, state in both:
        state["account"].pop("wire_bytes")  # ranks that find each other again send more
    assert both[0] == both[1]
    if "clip_norm" in words:
        norms = [[event["gradient_norm"] for event in events(run, "step")] for run in (alone, whole)]
        torch.testing.assert_close(*norms, rtol=1e-9, atol=0)


@pytest.mark.slow
def test_a_run_on_a_grid_goes_on_in_one_process_and_on_another_grid(tmp_path: Path) -> None:
    words = {"optimizer": "adamw"}
    alone = trained("1x1", tmp_path / "alone", "", words)
    trained("1x2", tmp_path / "parts", "", words, stop_at=5)
    trained("1x1", tmp_path / "parts", "", words, stop_at=8)
    parts = trained("1x3", tmp_path / "parts", "", words)
    torch.testing.assert_close(losses(alone), losses(parts), rtol=1e-9, atol=0)
    one, other = last(alone.checkpoints), last(parts.checkpoints)
    for name in one.names:
        torch.testing.assert_close(one.read(name), other.read(name), rtol=1e-8, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_a_grid_trains_in_a_mixed_precision(tmp_path: Path, precision: str) -> None:
    words = {"precision": precision, "clip_norm": 0.5}
    alone, whole = (trained(grid, tmp_path / grid, "", words) for grid in ("1x1", "1x2"))
    torch.testing.assert_close(losses(alone), losses(whole), rtol=0.02, atol=0)


def _overflowing(grid: str) -> tuple[float, list[float]]:
    """Return the scale of the loss, and a parameter, after an update whose gradient overflows on one rank."""
    from cotswold.mesh import partition
    from cotswold.training.precision import Precision

    module = partition(Net(), grid)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    precision = Precision("16-mixed", torch.device("cpu"))
    precision.backward(module(data().tensors[0][:8].float()).sum())
    before = [each.to_local().clone() for each in module.parameters()]
    for each in module.parameters():
        if dist.get_rank() == 1 and each.to_local().numel() < each.numel():
            each.grad.to_local().view(-1)[0] = torch.inf
    result = precision.update(optimizer)
    assert result.skipped and precision.scaler is not None
    now = [each.to_local() for each in module.parameters()]
    assert all(map(torch.equal, before, now))
    return precision.scaler.get_scale(), [float(each.detach().sum()) for each in now[:1]]


@pytest.mark.slow
def test_all_ranks_skip_an_update_that_overflows_on_one(tmp_path: Path) -> None:
    one, other = on_ranks(2, _overflowing, "1x2")
    assert one == other and one[0] == 2.0**15


def _refused(run: str, made: str, words: Mapping[str, Any]) -> str:
    try:
        _as_rank("1x2", run, 0, made, words)
    except (UserError, RecipeError) as error:
        return str(error)
    return ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "words", "said"),
    [
        ("used", {}, "has taken steps before the module was partitioned"),
        ("", {"compile": True}, "training.compile needs one process"),
    ],
)
def test_what_a_grid_cannot_do_is_refused(
    tmp_path: Path, made: str, words: dict[str, Any], said: str
) -> None:
    for answer in on_ranks(2, _refused, str(tmp_path / "run"), made, words):
        assert said in answer
