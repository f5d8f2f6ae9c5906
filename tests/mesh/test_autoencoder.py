"""A partitioned stack has the objective, the gradients and the updates of the stack in one process."""

from __future__ import annotations

import pytest
import torch
from tests.mesh.test_partition import CLOSE, GRIDS, STEPS, whole
from tests.support.mesh.ranks import on_ranks
from torch import Tensor

from cotswold.geometry import BlockLocal, Grid, MapShape, Smoothing, StackGeometry, Window
from cotswold.mesh import partition
from cotswold.nn import SparseAutoencoderStack, StackNetwork


def network() -> StackNetwork:
    """Return two stacks on maps that no grid of the tests divides evenly."""
    first = StackGeometry(
        BlockLocal(MapShape(2, 19, 17), Window(5, 3, 1, 2), Window(4, 3), rows=2, columns=3, depth=2),
        Smoothing(3, keep=True),
        Smoothing(2, keep=True),
    )
    second = StackGeometry(
        BlockLocal(first.output, Window(6, 2), Window(7, 2), rows=2, columns=2, depth=3),
        Smoothing(2),
        Smoothing(1),
    )
    return StackNetwork([SparseAutoencoderStack(g, seed=2, index=i) for i, g in enumerate((first, second))])


def _found(model: StackNetwork) -> dict[str, Tensor]:
    lower, upper = model.stacks
    x = torch.rand(4, 2, 19, 17, generator=torch.Generator().manual_seed(0)).double() - 0.4
    lower.calibrate(x)
    upper.calibrate(lower(x))
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    found = {}
    for step in range(STEPS):
        optimiser.zero_grad()
        loss = lower.objective(x) + upper.objective(lower(x)) + model(x).square().mean()
        loss.backward()
        found[f"loss {step}"] = whole(loss)
        if step == 0:
            for name, values in model.named_parameters():
                found[f"gradient of {name}"] = whole(values.grad)
        optimiser.step()
    found["decoded"] = whole(lower.reconstruct(x))
    model.eval()
    found["output"] = whole(model(x))
    return found | {name: whole(values).clone() for name, values in model.state_dict().items()}


def _differences(grid: str) -> dict[str, float]:
    alone = _found(network().double())
    ours = _found(partition(network().double(), grid))
    assert list(alone) == list(ours)
    return {
        key: ((ours[key] - values).abs().max() / values.abs().max()).item() for key, values in alone.items()
    }


@pytest.mark.soak
@pytest.mark.parametrize("grid", GRIDS)
def test_stacks_train_through_autograd_as_in_one_process(grid: str) -> None:
    for rank, differences in enumerate(on_ranks(Grid.parse(grid).size, _differences, grid)):
        assert {key: value for key, value in differences.items() if not value <= CLOSE} == {}, rank
