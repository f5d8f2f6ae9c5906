"""Sums over ranks in short types err no more than torch's own, and a NaN of any rank reaches all ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from tests.support.mesh.ranks import on_ranks
from torch import Tensor, nn
from torch.nn import functional as F

from cotswold.geometry import Grid
from cotswold.mesh import DistributedMap, Mesh, partition

GRIDS = ("1x2", "2x1", "2x2")
SHORT = (torch.float16, torch.bfloat16)
SHAPE = (1, 4, 160, 164)
"""Shape of values of about 3.5, whose sum overflows float16."""


def _values(seed: int, dtype: torch.dtype) -> Tensor:
    return (torch.rand(SHAPE, generator=torch.Generator().manual_seed(seed)) + 3).to(dtype)


def _other(x: Any, seed: int = 1) -> Tensor:
    """Return values in the type of ``x`` that are the same short numbers in any type."""
    short = torch.bfloat16 if x.dtype == torch.float64 else x.dtype
    return _values(seed, torch.bfloat16).to(short).to(x.dtype)


def _of_channels(x: Any) -> Tensor:
    return torch.tensor([0.5, 1.0, 1.5, 2.0]).to(x.dtype)


def _gradient(function: Callable[[Any, Tensor], Any]) -> Callable[[Any], Any]:
    """Return the gradient of a parameter, which is summed over ranks."""

    def of(x: Any) -> Tensor:
        learnt = _of_channels(x).requires_grad_()
        (found,) = torch.autograd.grad(function(x, learnt).sum(), learnt)
        return found

    return of


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: (x / 64).sum((2, 3)),
    "sum of columns": lambda x: x.sum(3),
    "mean": lambda x: x.mean(),
    "mean over space": lambda x: x.mean((2, 3)),
    "var": lambda x: x.var((2, 3)),
    "std": lambda x: x.std((0, 2, 3), correction=0),
    "amax": lambda x: x.amax((2, 3)),
    "adaptive average": lambda x: F.adaptive_avg_pool2d(x, 3),
    "adaptive maximum": lambda x: F.adaptive_max_pool2d(x, 3),
    "average of windows": lambda x: F.avg_pool2d(x, 50, 11),
    "average, padded": lambda x: F.avg_pool2d(x, 31, 7, 15, count_include_pad=False),
    "powers of windows": lambda x: F.lp_pool2d(x, 2, 9),
    "maximum of windows": lambda x: F.max_pool2d(x, 5),
    "mse": lambda x: F.mse_loss(x, 0 * _other(x)),
    "mse, summed": lambda x: F.mse_loss(x / 32, 0 * _other(x), reduction="sum"),
    "mse, unreduced": lambda x: F.mse_loss(x, _other(x), reduction="none"),
    "l1": lambda x: F.l1_loss(x, 0 * _other(x)),
    "smooth l1": lambda x: F.smooth_l1_loss(x, 0 * _other(x)),
    "huber": lambda x: F.huber_loss(x, 0 * _other(x)),
    "soft margin": lambda x: F.soft_margin_loss(x, 0 * _other(x) - 1),
    "poisson": lambda x: F.poisson_nll_loss(x, _other(x)),
    "binary cross entropy": lambda x: F.binary_cross_entropy(x / 5, _other(x) / 5),
    "logits": lambda x: F.binary_cross_entropy_with_logits(x, _other(x) / 4),
    "cross entropy": lambda x: F.cross_entropy(x, (_other(x)[:, 0] > 3.5).long()),
    "batch norm": lambda x: F.batch_norm(
        x, None, None, _of_channels(x), _of_channels(x), training=True
    ),
    "batch norm in evaluation": lambda x: F.batch_norm(
        x, _of_channels(x) + 2, _of_channels(x), _of_channels(x), _of_channels(x)
    ),
    "group norm": lambda x: F.group_norm(x, 2, _of_channels(x), _of_channels(x)),
    "instance norm": lambda x: F.instance_norm(x, weight=_of_channels(x), bias=_of_channels(x)),
    "bilinear": lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"),
    "convolution": lambda x: F.conv2d(x, _of_channels(x).view(1, 4, 1, 1).expand(2, 4, 3, 3) / 32, padding=1),
    "gradient of a scale": _gradient(lambda x, learnt: x * learnt[:, None, None] / 64),
    "gradient of slopes": _gradient(lambda x, learnt: F.prelu(-x / 64, learnt)),
    "gradient of a bias": _gradient(lambda x, learnt: F.batch_norm(x, None, None, None, learnt, True) / 64),
    "gradient of filters": _gradient(
        lambda x, learnt: F.conv2d(x / 64, learnt.view(1, 4, 1, 1).expand(1, 4, 3, 3), padding=1)
    ),
}  # fmt: skip


def _whole(value: Any) -> Tensor:
    return (value.full_tensor() if isinstance(value, DistributedMap) else value).detach()


def _errors(grid: str) -> dict[tuple[str, torch.dtype], tuple[float, float, float, bool]]:
    """Return torch's error, ours, and a unit in the last place of the largest value; True if types agree."""
    mesh, found = Mesh.of(grid), {}
    for dtype in SHORT:
        x = _values(0, torch.bfloat16).to(dtype)
        for name, function in FUNCTIONS.items():
            wanted = _whole(function(x.double()))
            plain, ours = _whole(function(x)), _whole(function(DistributedMap.of(x, mesh)))
            theirs, own = ((one.double() - wanted).abs().max().item() for one in (plain, ours))
            unit = torch.finfo(dtype).eps * wanted.abs().max().item()
            found[name, dtype] = (theirs, own, unit, plain.dtype == ours.dtype)
    return found


@cache
def errors(grid: str) -> dict[tuple[str, torch.dtype], tuple[float, float, float, bool]]:
    found: dict[tuple[str, torch.dtype], tuple[float, float, float, bool]] = on_ranks(
        Grid.parse(grid).size, _errors, grid
    )[-1]
    return found


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_short_numbers_errs_no_more_than_torchs_own(
    name: str, dtype: torch.dtype, grid: str
) -> None:
    plain, ours, unit, same_type = errors(grid)[name, dtype]
    assert same_type
    assert ours <= max(plain, unit)  # which a NaN is not


MAXIMA: dict[str, Callable[[Any], Any]] = {
    "amax": lambda x: x.amax((2, 3)),
    "amin": lambda x: x.amin((2, 3)),
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "adaptive maximum": lambda x: F.adaptive_max_pool2d(x, (2, 3)),
    "maximum of windows": lambda x: F.max_pool2d(x, 3, 2, 1),
    "maximum over channels": lambda x: x.amax(1, keepdim=True),
}


def _maxima(grid: str) -> list[str]:
    """Return the differences from torch for a map of negative values with one special value."""
    mesh, wrong = Mesh.of(grid), []
    draw = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for value in (torch.nan, -torch.nan, torch.inf, -torch.inf, -0.0):
            for y, x in ((0, 0), (0, 6), (4, 0), (4, 6)):
                plain = (torch.rand(1, 2, 5, 7, generator=draw) - 2).to(dtype)
                plain[0, 1, y, x] = value
                plain.requires_grad_()
                leaf = plain.detach().clone().requires_grad_()
                for name, function in MAXIMA.items():
                    wanted, got = function(plain), function(DistributedMap.of(leaf, mesh))
                    ours = got.full_tensor() if isinstance(got, DistributedMap) else got
                    if not torch.equal(_said(wanted), _said(ours)):
                        wrong.append(f"{name} {dtype} {value} at {y}, {x}")
                    if name == "adaptive maximum":
                        pair = (
                            torch.autograd.grad(one.sum(), at)[0]
                            for one, at in ((wanted, plain), (ours, leaf))
                        )
                        if not torch.equal(*map(_said, pair)):
                            wrong.append(f"gradient of {name} {dtype} {value} at {y}, {x}")
    return wrong


def _said(values: Tensor) -> Tensor:
    return values.detach().nan_to_num(nan=777.0)


@pytest.mark.parametrize("grid", GRIDS)
def test_maxima_over_ranks_are_torchs_where_values_are_not_finite(grid: str) -> None:
    assert on_ranks(Grid.parse(grid).size, _maxima, grid) == [[]] * Grid.parse(grid).size


def _of_integers() -> list[int]:
    x = torch.arange(-20, 4).view(1, 1, 4, 6)
    cut = DistributedMap.of(x, Mesh.of("2x2"))
    return [int(cut.max()), int(cut.min()), int(cut.sum()), int(cut.amax((2, 3)))]


def test_maxima_and_sums_of_whole_numbers_are_exact() -> None:
    assert on_ranks(4, _of_integers) == [[3, -20, -204, 3]] * 4


def _stacked() -> float:
    """Return the errors of outputs in bfloat16 relative to float64, next to those of the plain module."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 8)).bfloat16()
    x, partitioned = torch.randn(256, 64).bfloat16(), partition(module, "2x2")
    wanted = copy.deepcopy(module).double()(x.double())
    plain, ours = ((one(x).double() - wanted).abs().max().item() for one in (module, partitioned))
    return float(ours / plain)


def test_units_in_parts_of_short_numbers_err_hardly_more_than_torchs_own() -> None:
    assert max(on_ranks(4, _stacked)) < 2
