"""Replicas of a partitioned module: three axes, gradients averaged over replicas and summed over the grid."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.support.mesh.ranks import on_ranks
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cotswold.errors import UserError
from cotswold.mesh import DistributedMap, Mesh, partition
from cotswold.mesh.ranks.replicas import replicated

BATCH = 3


class Net(nn.Module):
    """Shared and sharded weights, a weight that is used twice, one without gradient, and batch norm."""

    def __init__(self, *, norm: bool = False) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4) if norm else nn.GroupNorm(2, 4)
        self.twice = nn.Conv2d(4, 4, 3, padding=1)
        self.down = nn.Linear(4 * 30, 7)
        self.up = nn.Linear(7, 3)
        self.unused = nn.Linear(2, 2)
        self.double()

    def forward(self, x: Any) -> Any:
        h = torch.tanh(self.norm(self.first(x)))
        h = self.twice(torch.tanh(self.twice(h)))
        return self.up(torch.relu(self.down(h.flatten(1))))


def backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped


def batches(replicas: int) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(1)
    x = torch.randn(replicas * BATCH, 2, 5, 6, generator=drawn, dtype=torch.float64)
    return x, torch.randint(0, 3, (replicas * BATCH,), generator=drawn)


def _updates(grid: str, replicas: int, norm: bool) -> float:
    """Return the largest difference to a single process after three updates of SGD."""
    whole = Net(norm=norm)
    given = Net(norm=norm)
    places = dist.get_world_size() // replicas
    index = dist.get_rank() // places
    if index:
        with torch.no_grad():
            for each in given.parameters():
                each.add_(1)  # the first replica's values count
    model = partition(given, grid, replicas=replicas, sync_batchnorm=norm)
    x, y = batches(replicas)
    mine = slice(index * BATCH, (index + 1) * BATCH)
    steps = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (whole, model)]
    for _ in range(3):
        for step in steps:
            step.zero_grad()
        backward(cross_entropy(whole(x), y))
        backward(cross_entropy(model(x[mine]), y[mine]))
        for step in steps:
            step.step()
    assert model.unused.weight.grad is None
    own = model.state_dict()
    apart = [
        (getattr(own[name], "full_tensor", lambda name=name: own[name])() - value).abs().max().item()
        for name, value in whole.state_dict().items()
    ]
    return float(max(apart))


@pytest.mark.parametrize(("grid", "replicas"), [("1x2", 2), ("2x1", 3), ("1x1", 3), ("2x2", 2)])
@pytest.mark.parametrize("norm", [False, True])
def test_replicas_of_a_grid_equal_one_process(grid: str, replicas: int, norm: bool) -> None:
    rows, columns = map(int, grid.split("x"))
    assert max(on_ranks(replicas * rows * columns, _updates, grid, replicas, norm)) < 1e-10


def _accumulated() -> tuple[float, int, int]:
    whole, model = Net(), partition(Net(), "1x2", replicas=2)
    axis = replicated(2, "1x2")[1]
    x, y = batches(4)
    index = axis.index
    axis.take_bytes_sent()
    parts = [slice(each * BATCH, (each + 1) * BATCH) for each in (index, index + 2)]
    with model.no_sync():
        backward(cross_entropy(model(x[parts[0]]), y[parts[0]]))
    quiet = axis.take_bytes_sent()
    backward(cross_entropy(model(x[parts[1]]), y[parts[1]]))
    backward(2 * cross_entropy(whole(x), y))
    found = model.twice.weight.grad.full_tensor() - whole.twice.weight.grad
    return float(found.abs().max()), quiet, axis.take_bytes_sent()


def test_gradients_accumulate_without_messages_between_replicas() -> None:
    for apart, quiet, sent in on_ranks(4, _accumulated):
        assert apart < 1e-12
        assert quiet == 0
        assert sent > 0


def _refusals() -> list[str]:
    said = []
    for grid, replicas in (("1x2", 3), ("2x2", 2), (Mesh.of("1x4"), 2), ("1x2", 0)):
        with pytest.raises(UserError) as found:
            partition(Net(), grid, replicas=replicas)
        said.append(str(found.value))
    return said


def test_replicas_that_are_no_part_of_the_job_are_refused() -> None:
    for said in on_ranks(4, _refusals):
        assert said[0] == "3 replicas of a 1x2 grid need 6 ranks, but 4 were started; start that number"
        assert "need 8 ranks" in said[1]
        assert "as text" in said[2]
        assert "give 1 or more" in said[3]


def _captured() -> float:
    whole, model = Net(), partition(Net(), "1x2")
    x, y = batches(1)
    found = torch.autograd.grad(cross_entropy(model(x), y), [model.twice.weight, model.first.bias])
    assert whole.first.bias is not None
    wanted = torch.autograd.grad(cross_entropy(whole(x), y), [whole.twice.weight, whole.first.bias])
    apart = [
        (own.full_tensor() - each).abs().max().item()
        for own, each in zip(found, wanted, strict=True)
        if hasattr(own, "full_tensor")
    ]
    seen: list[Tensor] = []
    model.first.weight.register_hook(lambda grad: seen.append(grad.full_tensor()))
    model.norm.weight.register_post_accumulate_grad_hook(lambda each: seen.append(each.grad.full_tensor()))
    cross_entropy(model(x), y).backward(inputs=[model.first.weight, model.norm.weight])  # type: ignore[no-untyped-call]  # torch leaves it untyped
    backward(cross_entropy(whole(x), y))
    assert model.twice.weight.grad is None
    for own, name in ((seen[0], "norm"), (seen[1], "first")):
        apart.append((own - getattr(whole, name).weight.grad).abs().max().item())
    return float(max(apart))


def test_hooks_and_autograd_grad_get_whole_gradients_of_shared_weights() -> None:
    assert max(on_ranks(2, _captured)) < 1e-12


def _as_map() -> float:
    whole = nn.Conv2d(2, 3, 3, padding=1).double()
    model = partition(whole, "1x2", replicas=2)
    x, _ = batches(2)
    index = dist.get_rank() // 2
    out = model(x[index * BATCH : (index + 1) * BATCH])
    assert isinstance(out, DistributedMap)
    backward(out.square().mean())
    nn.Module.zero_grad(whole)
    backward(whole(x).square().mean())
    return float((model.weight.grad.full_tensor() - whole.weight.grad).abs().max())


def test_a_module_whose_output_is_a_map_averages_its_gradients() -> None:
    assert max(on_ranks(4, _as_map)) < 1e-12


def _copied() -> float:
    whole = Net()
    model = copy.deepcopy(partition(Net(), "1x2", replicas=2))
    x, y = batches(2)
    index = dist.get_rank() // 2
    mine = slice(index * BATCH, (index + 1) * BATCH)
    backward(cross_entropy(model(x[mine]), y[mine]))
    backward(cross_entropy(whole(x), y))
    assert whole.first.weight.grad is not None
    return float((model.first.weight.grad.full_tensor() - whole.first.weight.grad).abs().max())


def test_a_copy_of_a_module_averages_its_own_gradients() -> None:
    assert max(on_ranks(4, _copied)) < 1e-12


def _frozen() -> list[float]:
    """Return the differences after a layer is frozen, and after it is released again."""
    whole, model = Net(), partition(Net(), "1x2", replicas=2)
    x, y = batches(2)
    index = dist.get_rank() // 2
    mine = slice(index * BATCH, (index + 1) * BATCH)
    found = []
    for learns in (True, False, True):
        for each in (whole, model):
            each.zero_grad()
            each.first.requires_grad_(learns)
        backward(cross_entropy(model(x[mine]), y[mine]))
        backward(cross_entropy(whole(x), y))
        if learns:
            assert whole.first.weight.grad is not None
            apart = model.first.weight.grad.full_tensor() - whole.first.weight.grad
            found.append(float(apart.abs().max()))
        else:
            assert model.first.weight.grad is None
    return found


def test_layers_may_be_frozen_and_released() -> None:
    for found in on_ranks(4, _frozen):
        assert max(found) < 1e-12


class Broken(torch.autograd.Function):
    """The identity, whose backward pass fails while it is broken."""

    is_broken = True

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        if Broken.is_broken:
            raise RuntimeError("broken")
        return grad


class Failing(Net):
    def forward(self, x: Any) -> Any:
        h = torch.tanh(self.norm(self.first(x)))
        if isinstance(h, DistributedMap):
            h = h.like(Broken.apply(h.local))  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self.up(torch.relu(self.down(self.twice(h).flatten(1))))


def _after_a_failure() -> float:
    whole, model = Failing(), partition(Failing(), "1x2", replicas=2)
    x, y = batches(2)
    index = dist.get_rank() // 2
    mine = slice(index * BATCH, (index + 1) * BATCH)
    Broken.is_broken = True
    with pytest.raises(RuntimeError, match="broken"):
        backward(cross_entropy(model(x[mine]), y[mine]))
    Broken.is_broken = False
    model.zero_grad()
    backward(cross_entropy(model(x[mine]), y[mine]))
    backward(cross_entropy(whole(x), y))
    apart = [
        (own.grad.full_tensor() - each.grad).abs().max().item()
        for own, each in zip(model.parameters(), whole.parameters(), strict=True)
        if each.grad is not None
    ]
    return float(max(apart))


def test_a_backward_pass_that_failed_leaves_nothing_behind() -> None:
    assert max(on_ranks(4, _after_a_failure)) < 1e-12
