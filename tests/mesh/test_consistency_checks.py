"""Ranks with different batches or random numbers are named by all ranks before any update."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.support.mesh.ranks import on_ranks
from torch import Tensor, nn
from torch.nn import functional as F

from cotswold.errors import CotswoldError
from cotswold.geometry import Grid
from cotswold.mesh import DistributedMap, Mesh, partition
from cotswold.mesh.ranks.consistency_checks import OFTEN, due, fingerprint, first_equal
from cotswold.mesh.transport.connect import SWITCH

GRIDS = ("1x2", "2x1", "2x2")


class _Depth(nn.Module):
    """Stochastic depth: whole images are left out, by numbers that the module draws itself."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.empty(x.shape[0], 1, 1, 1).bernoulli_(0.5)


def _batch(images: int = 4) -> Tensor:
    return torch.rand(images, 2, 6, 8, generator=torch.Generator().manual_seed(1))


def _on(rank: int) -> bool:
    """True on the rank that errs."""
    return dist.get_rank() == rank


def _conv(grid: str) -> Any:
    torch.manual_seed(0)
    return partition(nn.Conv2d(2, 3, 3, padding=1), grid)


def _linear(grid: str) -> Any:
    torch.manual_seed(0)
    return partition(nn.Linear(5, 3), grid)


def _more_images(grid: str, last: int) -> None:
    _conv(grid)(_batch(4 + _on(last)))


def _other_images(grid: str, last: int) -> None:
    _conv(grid)(_batch() if not _on(last) else 1 - _batch())


def _order_of_images(grid: str, last: int) -> None:
    _conv(grid)(_batch() if not _on(last) else _batch().flip(0))


def _other_features(grid: str, last: int) -> None:
    _linear(grid)(torch.ones(2, 5) + _on(last))


def _brightness(grid: str, last: int) -> None:
    _conv(grid)(torch.zeros(2, 2, 6, 8) + 0.01 * _on(last))


def _not_a_number(grid: str, last: int) -> None:
    batch = _batch()
    batch[0, 0, 0, 0] = torch.nan if _on(last) else 0
    _conv(grid)(batch)


def _beside_no_number(grid: str, last: int) -> None:
    batch = _batch() + _on(last)
    batch[0, 0, 0, :2] = torch.tensor([torch.nan, torch.inf])
    _conv(grid)(batch)


def _later(grid: str, last: int) -> None:
    partitioned = _conv(grid)
    for call in range(1, 9):
        partitioned(_batch() + (call == 8 and _on(last)))


def _drifting(grid: str, last: int) -> None:
    partitioned = partition(nn.Sequential(nn.Conv2d(2, 3, 1), nn.Dropout2d(0.5)), grid)
    partitioned(_batch())
    if _on(last):
        torch.rand(1)
    partitioned(_batch())


def _own_parameters(grid: str, last: int) -> None:
    partitioned = _conv(grid)
    optimiser = torch.optim.SGD(partitioned.parameters(), lr=1.0 + _on(last))
    for _ in range(2):  # the second call sees what the first step has left
        partitioned(_batch()).square().mean().backward()
        optimiser.step()
        optimiser.zero_grad()


def _functional(grid: str, last: int) -> None:
    torch.manual_seed(int(_on(last)))
    x: Any = DistributedMap.of(_batch(), Mesh.of(grid))
    for _ in range(OFTEN):  # at one of them values are compared, whatever drew before
        F.dropout(x, 0.5)


class _Features(nn.Module):
    """Features in parts, dropped by a function that returns the whole."""

    def __init__(self) -> None:
        super().__init__()
        self.units = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.alpha_dropout(self.units(x), 0.5, True)


def _of_features(grid: str, last: int) -> None:
    partitioned = partition(_Features(), grid)
    torch.manual_seed(int(_on(last)))
    partitioned(torch.ones(2, 5))


def _of_its_own(grid: str, last: int) -> None:
    partitioned = partition(_Depth(), grid)
    torch.manual_seed(int(_on(last)))
    partitioned(_batch())


class _Noisy(nn.Module):
    """A diffusion network: images, the noise level of each, and a plain number."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, padding=1)

    def forward(self, x: Tensor, noise: Tensor, scale: float = 1.0) -> Any:
        return self.conv(x) * noise[:, None, None, None] * scale


def _noisy(grid: str) -> Any:
    torch.manual_seed(0)
    return partition(_Noisy(), grid)


def _few_numbers_beside_many(grid: str, last: int) -> None:
    _noisy(grid)(1000 * _batch(), torch.full((4,), 1 + 1e-4 * _on(last)))


def _plain_number(grid: str, last: int) -> None:
    _noisy(grid)(_batch(), torch.ones(4), scale=1.0 + _on(last))


def _eval_mode(grid: str, last: int) -> None:
    torch.manual_seed(0)
    partitioned = partition(nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3)), grid)
    partitioned.train(not _on(last))(_batch())


def _autocast(grid: str, last: int) -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=_on(last)):
        _conv(grid)(_batch())


def _another_type(grid: str, last: int) -> None:
    torch.manual_seed(0)
    module = nn.Conv2d(2, 3, 3)
    partition(module.double() if _on(last) else module, grid)


OTHERWISE = (
    "was called with other arguments, or in another mode (train, eval, autocast, no_grad), than rank 0"
)

CASES: dict[str, tuple[Callable[[str, int], None], str]] = {
    "more images": (_more_images, "got a batch of other sizes than rank 0"),
    "other images": (_other_images, "got another batch than rank 0"),
    "images in another order": (_order_of_images, "got another batch than rank 0"),
    "other features": (_other_features, "got another batch than rank 0"),
    "a little brighter": (_brightness, "got another batch than rank 0"),
    "what is no number": (_not_a_number, "got another batch than rank 0"),
    "other images beside what is no number": (_beside_no_number, "got another batch than rank 0"),
    "other images later": (_later, "got another batch than rank 0"),
    "a few numbers beside many": (_few_numbers_beside_many, "got another batch than rank 0"),
    "a learning rate of its own": (_own_parameters, "has other values of replicated parameters than rank 0"),
    "a plain number": (_plain_number, OTHERWISE),
    "eval instead of train": (_eval_mode, OTHERWISE),
    "autocast": (_autocast, OTHERWISE),
    "weights of another type": (_another_type, "has another Conv2d module than rank 0"),
    "a number drawn by one rank": (_drifting, "draws other random numbers than rank 0"),
    "dropout as a function": (_functional, "draws other random numbers than rank 0"),
    "dropout of features": (_of_features, "draws other random numbers than rank 0"),
    "numbers that a module draws": (_of_its_own, "draws other random numbers than rank 0"),
}


def _words(grid: str, switch: str) -> dict[str, str]:
    os.environ[SWITCH] = switch
    found = {}
    try:
        for name, (case, _) in CASES.items():
            torch.manual_seed(0)
            try:
                case(grid, dist.get_world_size() - 1)
            except CotswoldError as error:
                found[name] = str(error)
    finally:
        del os.environ[SWITCH]
    return found


@pytest.mark.parametrize("switch", ["0", "1"], ids=["Gloo", "memory"])
@pytest.mark.parametrize("grid", GRIDS)
def test_a_rank_that_errs_is_named_by_all(grid: str, switch: str) -> None:
    last = Grid.parse(grid).size - 1
    for words in on_ranks(last + 1, _words, grid, switch):
        assert {name: said.partition(";")[0] for name, said in words.items()} == {
            name: f"rank {last} {what}" for name, (_, what) in CASES.items()
        }


def _sizes_at_any_call(grid: str) -> list[str]:
    """Return the errors of ranks if the last batch of an epoch, at any call, has other sizes on one rank."""
    partitioned, found = _conv(grid), []
    for _ in range(4):
        partitioned(_batch())
    try:
        partitioned(_batch(3 if _on(0) else 2))
    except CotswoldError as error:
        found.append(str(error))
    return found


def _between_hosts(work: Callable[[str], Any], grid: str) -> Any:
    os.environ[SWITCH] = "0"
    try:
        return work(grid)
    finally:
        del os.environ[SWITCH]


def test_sizes_are_compared_at_every_call_between_hosts() -> None:
    for said in on_ranks(2, _between_hosts, _sizes_at_any_call, "1x2"):
        assert len(said) == 1 and said[0].startswith("rank 1 got a batch of other sizes than rank 0; ")


def _harmless(grid: str) -> int:
    """Return the calls that accept unused generators in different states, and batches with another
    rounding.
    """
    partitioned = _conv(grid)
    torch.manual_seed(dist.get_rank())
    for _ in range(8):
        partitioned(_batch() * (1 + 1e-7 * dist.get_rank()))
    with torch.inference_mode():
        partitioned(_batch())
    partitioned(_batch()).square().mean().backward()
    partitioned(torch.full((4, 2, 6, 8), torch.nan))
    return 1


@pytest.mark.parametrize("grid", GRIDS)
def test_what_does_no_harm_is_no_error(grid: str) -> None:
    count = Grid.parse(grid).size
    assert on_ranks(count, _between_hosts, _harmless, grid) == [1] * count


def test_ranks_that_agree_are_all_compared_with_one() -> None:
    compared = []

    def alike(one: Tensor, other: Tensor) -> bool:
        compared.append((int(one), int(other)))
        return int(one) % 2 == int(other) % 2

    assert first_equal([torch.tensor(2 * rank) for rank in range(1000)], alike) == [0] * 1000
    assert len(compared) == 999
    assert first_equal([torch.tensor(rank) for rank in (4, 3, 2, 1)], alike) == [0, 1, 0, 1]


def test_values_are_compared_often_at_first_and_then_now_and_then() -> None:
    found = [call for call in range(1, 200) if due(call)]
    assert found == [1, 2, 4, 8, 16, 32, OFTEN, 2 * OFTEN, 3 * OFTEN]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.uint8, torch.complex64], ids=str)
def test_a_fingerprint_depends_on_values_and_places_not_on_strides(dtype: torch.dtype) -> None:
    values = (100 * torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(0))).to(dtype)
    own = fingerprint(values)
    torch.testing.assert_close(own, fingerprint(values.permute(2, 0, 1).contiguous().permute(1, 2, 0)))
    for other in (values.flip(0), values + 1, torch.zeros_like(values)):
        assert (own - fingerprint(other)).abs().max() > 1e-4 * own[2]
    assert fingerprint(torch.cat([values, values])).tolist() != (2 * own).tolist()
