"""Partitioned networks compute the results of one process: outputs, losses, gradients, updates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.mesh.networks import NETWORKS, inputs
from tests.support.mesh.ranks import on_ranks
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from cotswold.geometry import Grid
from cotswold.mesh import DistributedMap, partition

GRIDS = ("1x1", "1x2", "2x1", "2x2", "1x3", "3x2")
STEPS = 3
CLOSE = 1e-10


def whole(value: object) -> Tensor:
    if isinstance(value, DistributedMap | DTensor):
        value = value.full_tensor()
    assert isinstance(value, Tensor)
    return value.detach()


def _loss(out: Any) -> Tensor:
    loss: Tensor = ((out - 0.5) ** 2).mean()
    return loss


def trained(module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Return loss, gradients and parameters of some updates, all whole."""
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    found: dict[str, Tensor] = {}
    for step in range(STEPS):
        torch.manual_seed(step)
        optimiser.zero_grad()
        out = module(x)
        loss = _loss(out)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        found[f"loss {step}"] = whole(loss)
        if step == 0:
            found["output"] = whole(out)
            assert x.grad is not None
            found["gradient of the input"] = x.grad.clone()
            for name, values in module.named_parameters():
                found[f"gradient of {name}"] = whole(values.grad)
        optimiser.step()
    found |= {name: whole(values).clone() for name, values in module.state_dict().items()}
    return found


def _compare(name: str, grid: str) -> dict[str, float]:
    """Return the largest difference of each result, relative to its largest value."""
    torch.manual_seed(3)
    module = NETWORKS[name]().double()
    partitioned = partition(module, grid)
    alone = trained(module, inputs(name).requires_grad_())
    ours = trained(partitioned, inputs(name).requires_grad_())
    assert list(alone) == list(ours)
    return {
        key: ((ours[key] - values).abs().max() / values.abs().max().clamp_min(1e-300)).item()
        for key, values in alone.items()
    }


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_partitioned_module_trains_as_its_module_does_in_one_process(name: str, grid: str) -> None:
    for rank, differences in enumerate(on_ranks(Grid.parse(grid).size, _compare, name, grid)):
        assert {key: value for key, value in differences.items() if not value <= CLOSE} == {}, rank
