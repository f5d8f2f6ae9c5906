"""Networks of channels-last layers, windows and tokens compute and learn on ranks as in one process."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import pytest
import torch
from tests.support.mesh.ranks import on_ranks
from tests.support.mesh.token_networks import NETWORKS as HYBRIDS
from tests.support.mesh.vision_networks import NETWORKS as BACKBONES
from torch import Tensor, nn

from cotswold.geometry import Grid
from cotswold.mesh import partition

SHAPE = (2, 3, 11, 13)
GRIDS = ("1x2", "2x2", "1x3")
STEPS = 3
NETWORKS = {**BACKBONES, **HYBRIDS}


def _whole(value: Any) -> Tensor:
    found: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return found.detach()


def _trained(module: nn.Module) -> list[Tensor]:
    """Return the first output, gradients of the input and of parameters, and parameters after updates."""
    optimiser = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    found: list[Tensor] = []
    for step in range(STEPS):
        torch.manual_seed(step)
        x = torch.randn(SHAPE, dtype=torch.float64).requires_grad_()
        optimiser.zero_grad()
        out = module(x)
        (out * out.detach() + out).mean().backward()
        if step == 0:
            assert x.grad is not None
            found += [
                out,
                x.grad,
                *(values.grad for values in module.parameters() if values.grad is not None),
            ]
            found = [_whole(one) for one in found]
        optimiser.step()
    module.eval()
    with torch.no_grad():
        found.append(_whole(module(x)))
    return [*found, *map(_whole, module.parameters())]


def _differences(grid: str, names: list[str]) -> dict[str, float]:
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            torch.manual_seed(0)
            module = NETWORKS[name]().double()
            pairs = zip(_trained(partition(module, grid)), _trained(module), strict=True)
            apart = [(a - b).abs().max() / b.abs().max().clamp_min(1e-3) for a, b in pairs]
            found[name] = torch.stack(apart).max().item()
    return found


@cache
def differences(grid: str) -> list[dict[str, float]]:
    found: list[dict[str, float]] = on_ranks(Grid.parse(grid).size, _differences, grid, [*NETWORKS])
    return found


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_vision_network_computes_and_learns_the_same(name: str, grid: str) -> None:
    assert all(found[name] < 1e-10 for found in differences(grid))
