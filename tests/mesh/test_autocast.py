"""Partitioned modules under autocast have the types of their modules, on ranks without outputs too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.support.mesh.ranks import on_ranks
from tests.support.mesh.vision_networks import JoinedAttention, Permute, SplitAttention
from torch import Tensor, nn

from cotswold.geometry import Grid
from cotswold.mesh import DistributedArray, DistributedMap, partition
from cotswold.nn import LocallyConnected2d

DISTRIBUTED = DistributedArray, DistributedMap
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "a convolution": lambda: nn.Conv2d(1, 2, 3),
    "one whose messages are hidden": lambda: nn.Sequential(nn.ReLU(), nn.Conv2d(1, 2, 3, padding=1)),
    "one without a bias": lambda: nn.Conv2d(1, 2, (9, 11), bias=False),
    "few outputs": lambda: nn.Sequential(nn.Conv2d(1, 2, (9, 11)), nn.ReLU()),
    "a transposed one": lambda: nn.Sequential(nn.Conv2d(1, 2, (9, 11)), nn.ConvTranspose2d(2, 1, 1)),
    "a local layer": lambda: LocallyConnected2d(1, 2, (9, 12), (8, 11)),
    "a classifier": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4, 5), nn.Linear(5, 3),
    ),
    "matrices of channels-last views": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), Permute(0, 2, 3, 1), nn.LayerNorm(4), nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4),
    ),
    "attention of tokens": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), Permute(0, 2, 3, 1), nn.Flatten(1, 2), JoinedAttention(4, 2),
        SplitAttention(4, 2),
    ),
}  # fmt: skip


def _compared(name: str, grid: str) -> tuple[bool, float]:
    torch.manual_seed(1)
    module, x = NETWORKS[name](), torch.rand(2, 1, 9, 12)
    partitioned = partition(module, grid)
    found: list[Tensor] = []
    for one in (module, partitioned):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = one(x)
        local = out.local if isinstance(out, DISTRIBUTED) else out
        whole = out.full_tensor() if isinstance(out, DISTRIBUTED) else out
        whole.float().square().sum().backward()
        found += [local, whole]
    same = found[0].dtype == found[2].dtype == found[3].dtype
    apart = (found[1].float() - found[3].float()).abs().max() / found[1].float().abs().max()
    for ours, own in zip(partitioned.parameters(), module.parameters(), strict=True):
        assert own.grad is not None and ours.grad.full_tensor().dtype == own.grad.dtype
    return same, apart.item()


@pytest.mark.parametrize("grid", ["1x2", "3x2"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_partitioned_module_under_autocast_has_the_type_and_nearly_the_values_of_its_module(
    name: str, grid: str
) -> None:
    for same, apart in on_ranks(Grid.parse(grid).size, _compared, name, grid):
        assert same
        assert apart < 0.03
