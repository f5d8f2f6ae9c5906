"""Parameters of partitioned modules are DTensors accepted by torch's optimisers, clipping and state dicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.support.mesh.ranks import on_ranks
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from cotswold.errors import UserError
from cotswold.geometry import Grid
from cotswold.mesh import partition
from cotswold.nn import LocallyConnected2d

GRIDS = ("1x2", "2x2", "3x2")
OPTIMISERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=0.01),
    "Adam": lambda parameters: torch.optim.Adam(parameters, 0.01),
    "AdamW, one by one": lambda parameters: torch.optim.AdamW(parameters, 0.01, foreach=False),
    "AdamW, together": lambda parameters: torch.optim.AdamW(parameters, 0.01, foreach=True),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, 0.01),
}


def _network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, bias=False),  # it would have no slope, and Adam divide by it
        nn.BatchNorm2d(2),
        LocallyConnected2d(2, 2, (5, 4), 3, block=(2, 1)),
        nn.Flatten(),
        nn.Linear(2 * 6 * 2, 5),
        nn.ReLU(),
        nn.Linear(5, 3),
    ).double()


def _batch() -> Tensor:
    return torch.randn(4, 1, 7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def _whole(values: Any) -> Tensor:
    out: Tensor = values.full_tensor() if isinstance(values, DTensor) else values
    return out.detach()


def _stepped(module: nn.Module, optimiser: torch.optim.Optimizer, limit: float) -> Tensor:
    optimiser.zero_grad()
    (module(_batch()) ** 2).sum().backward()
    norm = torch.nn.utils.clip_grad_norm_(module.parameters(), limit)
    optimiser.step()
    return _whole(norm)


def _clipped(grid: str, name: str) -> float:
    module = _network()
    partitioned = partition(module, grid)
    alone, ours = OPTIMISERS[name](module.parameters()), OPTIMISERS[name](partitioned.parameters())
    for _ in range(3):
        norms = _stepped(module, alone, 0.1), _stepped(partitioned, ours, 0.1)
        assert torch.allclose(*norms, rtol=1e-12, atol=0)
    pairs = zip(partitioned.parameters(), module.parameters(), strict=True)
    return max((_whole(a) - b).abs().max().item() for a, b in pairs)


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("grid", GRIDS)
def test_clipping_and_optimisers_do_to_a_partitioned_module_what_they_do_to_its_module(
    grid: str, name: str
) -> None:
    assert max(on_ranks(Grid.parse(grid).size, _clipped, grid, name)) < 1e-12


def _kinds() -> list[str]:
    return [type(values.data).__name__ for values in partition(_network(), "2x2").parameters()]


def test_every_parameter_is_a_distributed_tensor() -> None:
    assert set(on_ranks(4, _kinds)[0]) == {"DTensor"}


def _local_numbers() -> tuple[list[int], int]:
    partitioned = partition(_network(), "2x2")
    sharded = [partitioned[2].weight, partitioned[4].weight, partitioned[4].bias, partitioned[6].weight]
    return [values.to_local().numel() for values in sharded], sum(values.numel() for values in sharded)


def test_ranks_share_the_numbers_of_local_and_fully_connected_layers_out() -> None:
    found = on_ranks(4, _local_numbers)
    assert sum(sum(own) for own, _ in found) == found[0][1]


def _state(of_module: bool) -> tuple[list[str], float]:
    module, partitioned = _network(), partition(_network(), "3x2")
    other = partition(_network(), "3x2")
    for values in other.parameters():
        nn.init.zeros_(values)
    other.load_state_dict((module if of_module else partitioned).state_dict())
    differences = [
        (_whole(other.state_dict()[name]) - values).abs().max().item()
        for name, values in module.state_dict().items()
    ]
    return list(partitioned.state_dict()), max(differences)


@pytest.mark.parametrize("of_module", [False, True])
def test_the_state_of_a_partitioned_module_or_of_its_module_goes_to_another_partitioned_module(
    of_module: bool,
) -> None:
    names, difference = on_ranks(6, _state, of_module)[0]
    assert names == list(_network().state_dict())
    assert difference == 0


def _lbfgs(grid: str) -> str | None:
    partitioned = partition(_network(), grid)
    optimiser = torch.optim.LBFGS(partitioned.parameters(), lr=0.1)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss: Tensor = (partitioned(_batch()) ** 2).sum()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return loss

    try:
        optimiser.step(closure)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    except UserError as error:
        return str(error)
    return None


def test_lbfgs_is_refused_where_parts_are_not_alike() -> None:
    for words in on_ranks(4, _lbfgs, "2x2"):
        assert words is not None and "LBFGS" in words


def _even() -> float:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    partitioned = partition(module, "2x2")
    x = torch.randn(5, 8, dtype=torch.float64)
    losses = []
    for one in (module, partitioned):
        optimiser = torch.optim.LBFGS(one.parameters(), lr=0.1)

        def closure(one: Any = one, optimiser: torch.optim.Optimizer = optimiser) -> Tensor:
            optimiser.zero_grad()
            loss: Tensor = (one(x) ** 2).sum()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            return loss

        optimiser.step(closure)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        losses.append(closure().item())
    return abs(losses[0] - losses[1]) / losses[0]


def test_lbfgs_works_where_parts_are_alike() -> None:
    assert max(on_ranks(4, _even)) < 1e-9


def _from_meta() -> list[float]:
    torch.manual_seed(9)
    module = _layers("cpu")
    torch.manual_seed(9)
    partitioned = partition(_layers("meta"), "3x2")
    pairs = zip(partitioned.state_dict().values(), module.state_dict().values(), strict=True)
    return [(_whole(a) - b).abs().max().item() for a, b in pairs]


def _partly_meta() -> float:
    module = nn.Linear(3, 4, device="meta")
    module.bias = nn.Parameter(torch.arange(4.0))
    local = LocallyConnected2d(1, 1, (4, 4), 3, device="meta")
    assert local.bias is not None
    local.bias = nn.Parameter(torch.full(local.bias.shape, 7.0))
    partitioned = partition(nn.ModuleList([module, local]), "1x2")
    return (_whole(partitioned[0].bias) - module.bias).abs().max().item() + (
        _whole(partitioned[1].bias) - 7
    ).abs().max().item()


def test_values_that_a_module_has_are_kept_where_others_are_drawn() -> None:
    assert on_ranks(2, _partly_meta) == [0, 0]


def _layers(device: str) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, device=device),
        nn.BatchNorm2d(3, device=device),
        LocallyConnected2d(3, 2, (9, 8), 3, stride=2, block=(2, 1), device=device),
        nn.Flatten(),
        nn.Linear(2 * 8 * 3, 5, device=device),
    )


def test_a_module_on_the_meta_device_gets_the_values_of_one_built_on_the_cpu() -> None:
    assert max(on_ranks(6, _from_meta)[0]) == 0
