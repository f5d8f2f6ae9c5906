"""Batch normalisation over all replicas: of tokens, rows, features, and as a network of torch asks for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.support.mesh.ranks import on_ranks
from torch import Tensor, nn

from cotswold.mesh import partition

BATCH = 2


class _Of(nn.Module):
    """A convolution and a batch normalisation of what a function makes of its map."""

    def __init__(self, function: Callable[[Any], Any], norm: nn.Module, channels: int = 4) -> None:
        super().__init__()
        self.conv, self.function, self.norm = nn.Conv2d(2, channels, 3, padding=1), function, norm

    def forward(self, x: Any) -> Any:
        return self.norm(self.function(self.conv(x)))


def _tokens(x: Any) -> Any:
    return x.flatten(2)


def _rows(x: Any) -> Any:
    return x.flatten(2).transpose(1, 2).flatten(0, 1)


def _positions(x: Any) -> Any:
    return x.flatten(2).transpose(1, 2)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "tokens": lambda: _Of(_tokens, nn.BatchNorm1d(4)),
    "rows": lambda: _Of(_rows, nn.BatchNorm1d(4)),
    "positions": lambda: _Of(_positions, nn.BatchNorm1d(20)),
    "features": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(24, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)
    ),
    "a mean over time, without parameters": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, momentum=None, affine=False), nn.ReLU(), nn.Conv2d(4, 2, 2)
    ),
    "torch's own": lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 2)),
}


def _updated(module: nn.Module, x: Tensor) -> list[Tensor]:
    """Return parameters and buffers after three updates."""
    optimiser = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    for _ in range(3):
        optimiser.zero_grad()
        loss = (module(x) ** 2).mean()
        loss.backward()
        optimiser.step()
    values: list[Any] = [*module.parameters(), *module.buffers()]
    return [(each.full_tensor() if hasattr(each, "full_tensor") else each).detach() for each in values]


def _differences(grid: str) -> dict[str, float]:
    replicas = 2
    index, found = dist.get_rank() // (dist.get_world_size() // replicas), {}
    drawn = torch.Generator().manual_seed(1)
    x = torch.randn(replicas * BATCH, 2, 4, 5, generator=drawn, dtype=torch.float64)
    for name, make in MODULES.items():
        torch.manual_seed(0)
        whole = make().double()
        torch.manual_seed(0)
        given, asked = make().double(), True
        if name == "torch's own":
            given, asked = nn.SyncBatchNorm.convert_sync_batchnorm(given), False  # type: ignore[no-untyped-call]  # torch's
        model = partition(given, grid, replicas=replicas, sync_batchnorm=asked)
        got = _updated(model, x[index * BATCH : (index + 1) * BATCH])
        pairs = zip(got, _updated(whole, x), strict=True)
        found[name] = max((a.double() - b.double()).abs().max().item() for a, b in pairs)
    return found


@cache
def differences(grid: str) -> list[dict[str, float]]:
    found: list[dict[str, float]] = on_ranks(4 if grid == "1x2" else 2, _differences, grid)
    return found


@pytest.mark.parametrize("grid", ["1x2", "1x1"])
@pytest.mark.parametrize("name", MODULES)
def test_statistics_are_those_of_the_batches_of_all_replicas(name: str, grid: str) -> None:
    assert all(found[name] < 1e-10 for found in differences(grid))
