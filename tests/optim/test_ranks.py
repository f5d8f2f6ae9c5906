"""Methods on several ranks: unevenly sharded DTensors, copies under DistributedDataParallel."""

from __future__ import annotations

import pytest
import torch
from tests.support.mesh.ranks import on_ranks
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from cotswold.errors import RankError, UserError
from cotswold.optim import LBFGS, Combine, ConjugateGradient, Dot, DTensorVectors, TensorVectors

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="no Gloo in this torch")

METHODS = pytest.mark.parametrize("method", [LBFGS, ConjugateGradient])
MATRIX = torch.arange(15, dtype=torch.float64).view(5, 3) / 7 - 1
"""Five rows over two ranks: three and two."""


def _dots() -> list[float]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    rows, same = distribute_tensor(MATRIX, mesh, [Shard(0)]), distribute_tensor(MATRIX, mesh, [Replicate()])
    vectors = DTensorVectors([rows, same, torch.ones(4, dtype=torch.float64)])
    vectors.run([Combine("y", ((2.0, "x"),))])
    return vectors.run([Dot("x", "x"), Dot("x", "y")])


def test_dots_of_uneven_and_repeated_parts_count_each_number_once() -> None:
    expected = 2 * float((MATRIX**2).sum()) + 4
    for dots in on_ranks(2, _dots):
        assert dots == pytest.approx([expected, 2 * expected])


def _sharded(steps: int) -> tuple[list[float], Tensor, list[str]]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    w = nn.Parameter(distribute_tensor(MATRIX, mesh, [Shard(0)]))
    b = nn.Parameter(distribute_tensor(torch.ones(5, dtype=torch.float64), mesh, [Replicate()]))
    optimiser = LBFGS([{"params": [w]}, {"params": [b], "weight_decay": 0.5}])

    def closure() -> Tensor:
        optimiser.zero_grad()
        parts = (w**4).sum() + (b * b).sum() + w.sum()
        assert isinstance(parts, DTensor)
        loss: Tensor = parts.full_tensor()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return loss

    losses = [float(optimiser.step(closure)) for _ in range(steps)]
    saved = optimiser.state_dict()
    fresh = LBFGS([{"params": [w]}, {"params": [b], "weight_decay": 0.5}])
    fresh.load_state_dict(saved)
    losses.append(float(fresh.step(closure)))
    refused = []
    for parts in ([torch.ones(2)], [DTensor.from_local(torch.ones(2), mesh, [dist.tensor.Partial()])]):
        with pytest.raises(UserError) as error:
            DTensorVectors(parts)
        refused.append(str(error.value))
    return losses, w.detach().full_tensor(), refused  # type: ignore[attr-defined]  # of DTensor


def test_lbfgs_on_uneven_dtensors_does_what_it_does_on_tensors() -> None:
    w = nn.Parameter(MATRIX.clone())
    b = nn.Parameter(torch.ones(5, dtype=torch.float64))
    optimiser = LBFGS([{"params": [w]}, {"params": [b], "weight_decay": 0.5}])

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = (w**4).sum() + (b * b).sum() + w.sum()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return loss

    expected = [float(optimiser.step(closure)) for _ in range(9)]
    (losses, weights, refused), (other, others, _) = on_ranks(2, _sharded, 8)
    assert losses == other == pytest.approx(expected, rel=1e-9)
    assert torch.equal(weights, others) and torch.allclose(weights, w, rtol=1e-6)
    assert "use TensorVectors" in refused[0] and "pending sum" in refused[1]


def _copies(method: type[LBFGS | ConjugateGradient], wrapped: bool) -> tuple[list[float], Tensor] | str:
    """Train with half of the samples on each rank."""
    torch.manual_seed(0)
    rank = dist.get_rank()
    module: nn.Module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    x = torch.randn(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = x.sum(dim=1, keepdim=True).sin()
    if dist.get_world_size() > 1:
        x, y = x[rank::2], y[rank::2]
    if wrapped:
        module = DistributedDataParallel(module)
    optimiser = method(module.parameters())

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = nn.functional.mse_loss(module(x), y)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return loss

    try:
        losses = [float(optimiser.step(closure)) for _ in range(10)]
    except RankError as error:
        return str(error)
    return losses, torch.cat([each.detach().reshape(-1) for each in module.parameters()])


@METHODS
def test_under_ddp_the_loss_is_averaged_and_all_ranks_decide_as_one_process_would(
    method: type[LBFGS | ConjugateGradient],
) -> None:
    ((expected, weights),) = on_ranks(1, _copies, method, False)
    for losses, found in on_ranks(2, _copies, method, True):
        assert losses == pytest.approx(expected, rel=1e-5)
        assert torch.allclose(found, weights, rtol=1e-4)


@METHODS
def test_ranks_with_gradients_of_their_own_are_told_so_instead_of_parting(
    method: type[LBFGS | ConjugateGradient],
) -> None:
    for words in on_ranks(2, _copies, method, False):
        assert "rank 1 has another gradient than rank 0" in words and "group=None" in words


def test_tensors_of_one_process_need_no_ranks() -> None:
    assert TensorVectors(MATRIX.clone()).run([Dot("x", "x")]) == [pytest.approx(float((MATRIX**2).sum()))]
