"""Runs of a small network on replicas, and the same in one process.

Knows: the network, its data, losses and settings, ranks in processes of a test. Does not know: the
tests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.support.mesh.ranks import on_ranks
from tests.support.training.runs import last, losses
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from cotswold.geometry import Grid
from cotswold.launch import Membership
from cotswold.mesh.ranks.replicas import replicated
from cotswold.recipe.schema import Mesh, SupervisedTraining
from cotswold.run import RunDirectory, Stop
from cotswold.training import Resume, open_module_job
from cotswold.training.callbacks.base import Callback, CallbackContext
from cotswold.training.components import Components
from cotswold.training.distributed import SINGLE_PROCESS, RankContext

SAMPLES = 23
"""Odd, so that the last batch of an epoch is smaller than the others."""


class Net(nn.Module):
    """Two branches, of which one has a parameter without gradients, and a flattening that fails on no
    sample.
    """

    def __init__(self, norm: bool = False, drop: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first = nn.Conv2d(1, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3) if norm else nn.Identity()
        self.drop = nn.Dropout(drop)
        self.last = nn.Linear(3 * 16, 4)
        self.unused = nn.Linear(2, 2)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(torch.tanh(self.norm(self.first(x))))
        out: Tensor = self.last(h.view(len(x), -1))
        return out


def samples() -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(2)
    x = torch.randn(SAMPLES, 1, 4, 4, generator=drawn, dtype=torch.float64)
    y = torch.randint(0, 4, (SAMPLES,), generator=drawn)
    y[::5] = -100  # targets that the loss ignores
    return x, y


class Counted(Dataset[Any]):
    """A map-style data set that counts the samples that this process reads."""

    def __init__(self) -> None:
        self.read = 0
        self.pairs = samples()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.read += 1
        return self.pairs[0][index], self.pairs[1][index]


class Stream(IterableDataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Any:
        return iter(zip(*samples(), strict=True))


def _weighted() -> TensorDataset:
    x, y = samples()
    return TensorDataset(x, y.clamp(min=0), torch.linspace(0.2, 2, SAMPLES, dtype=torch.float64))


def _loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(*samples()), batch_size=5, shuffle=True)


def _broken() -> TensorDataset:
    x, y = samples()
    x[11, 0, 2, 3] = float("nan")
    return TensorDataset(x, y)


DATA: dict[str, Callable[[], Any]] = {
    "map": lambda: TensorDataset(*samples()),
    "loader": _loader,
    "stream": Stream,
    "weights": _weighted,
    "five": lambda: TensorDataset(*(each[:5] for each in samples())),
    "few": lambda: TensorDataset(*(each[1:4] for each in samples())),
    "broken": _broken,
}
EQUAL = ("few", "loader", "map", "stream", "weights")
"""Data with which replicas equal one process; `few` are fewer samples than replicas."""


def train(
    rank_context: RankContext,
    run: Path,
    *,
    kind: str = "map",
    loss: str = "cross_entropy",
    stop_at: int = 0,
    mesh: Mesh | None = None,
    net: Mapping[str, Any] | None = None,
    callbacks: Callable[[], list[Callback]] = list,
    measured: Callable[[], list[Any]] = list,
    **settings: Any,
) -> bool:
    stop = Stop()

    def watch(event: Mapping[str, object]) -> None:
        if event["kind"] == "step" and event["step"] == stop_at:
            stop.signal = 2

    batch = {} if kind == "loader" else {"batch_size": 5}
    training = SupervisedTraining(
        strategy="supervised", **{"epochs": 3, "threads": 1, "learning_rate": 0.1, **batch, **settings}
    )
    module = Net(**(net or {}))
    if rank_context.replicas is not None and rank_context.replicas.index:
        with torch.no_grad():
            module.first.weight.add_(1)  # all replicas start with the first one's values
    job = open_module_job(
        module,
        DATA[kind](),
        loss=loss if loss == "cross_entropy" else _loss(loss),
        directory=run,
        settings=training,
        mesh=mesh,
        validation=TensorDataset(*(each[:9] for each in samples())),
        resume=Resume.IF_STARTED,
        rank_context=rank_context,
        components=Components(callbacks=callbacks(), metrics=tuple(measured())),
    )
    finished = job.train(watch, stop)
    assert not any(each._post_accumulate_grad_hooks for each in module.parameters())
    return finished


def as_rank(replicas: int, grid: str, run: str, words: dict[str, Any]) -> bool:
    os.fsync = lambda fd: None  # matters to power cuts alone
    group = dist.new_group()
    assert group is not None
    members = Membership(dist.get_rank(), dist.get_world_size(), ("here",) * dist.get_world_size(), group)
    mesh, axis = replicated(replicas, grid)
    own = None if mesh.size == 1 else mesh
    section = Mesh(replicas=replicas, grid=grid, **words.pop("mesh", {}))
    context = RankContext(members, own, members.rank, members.size, axis)
    return train(context, Path(run), mesh=section, **words)


def trained(replicas: int, run: Path, grid: str = "1x1", **words: Any) -> RunDirectory:
    count = replicas * Grid.parse(grid).size
    finished = "stop_at" not in words
    assert set(on_ranks(count, as_rank, replicas, grid, str(run), words)) == {finished}
    return RunDirectory.open(run)


def weights(run: RunDirectory) -> dict[str, Tensor]:
    found = {}
    checkpoint = last(run.checkpoints)
    for name in checkpoint.names:
        if name != "random":
            found[name] = torch.as_tensor(checkpoint.read(name))
    return found


def alone(run: Path, **words: Any) -> RunDirectory:
    assert train(SINGLE_PROCESS, run, **words)
    return RunDirectory.open(run)


def compare(one: RunDirectory, other: RunDirectory) -> None:
    torch.testing.assert_close(weights(one), weights(other), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(losses(one), losses(other), rtol=1e-8, atol=1e-8)


def _sum_of_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets) * (targets >= 0).sum()


def _loss(kind: str) -> Any:
    if kind == "own sum":
        return _sum_of_losses
    if kind == "sum":
        return nn.CrossEntropyLoss(reduction="sum")
    return nn.CrossEntropyLoss(torch.tensor([0.1, 2, 1, 0.5], dtype=torch.float64))


class KeepsWeights(Callback):
    """Saves the module of every replica at the end."""

    every_rank = True
    needs_module = True

    def on_end(self, context: CallbackContext) -> None:
        assert context.module is not None, "needs_module"
        rank = dist.get_rank() if dist.is_initialized() else 0
        torch.save(context.module.state_dict(), context.run / f"{rank}.pt")


def keeps_weights() -> list[Callback]:
    return [KeepsWeights()]
