"""Masks of a rank with a single row, column or window are those of one process, and other rare arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from tests.support.mesh.compared import function_differences, tensor
from tests.support.mesh.ranks import on_ranks
from torch.nn import functional as F

from cotswold.geometry import Grid, Partition

SHAPE = (2, 4, 8, 6)
CUTS = {
    "2x1": ((0, 1, 8), (0, 6)),
    "1x2": ((0, 8), (0, 5, 6)),
    "2x2": ((0, 2, 8), (0, 4, 6)),
    "3x1": ((0, 4, 4, 8), (0, 6)),
}


def _conv(x: Any) -> Any:
    return F.conv2d(x, tensor(1, 4, 4, 3, 3), padding=1)


def _last(x: Any) -> Any:
    return _conv(x).permute(0, 2, 3, 1)


def _windows(x: Any) -> Any:
    return (x * 1).permute(0, 2, 3, 1).reshape(2, 4, 2, 3, 2, 4).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, 4)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "channels last": lambda x: F.dropout(_last(x), 0.5),
    "tokens": lambda x: F.dropout(_conv(x).flatten(2).transpose(1, 2), 0.5),
    "rows and columns exchanged": lambda x: F.dropout((x * 1).transpose(2, 3), 0.5),
    "rows first": lambda x: F.dropout((x * 1).permute(2, 3, 0, 1), 0.5),
    "windows": lambda x: F.dropout(_windows(x), 0.5),
    "drawn alike": lambda x: _last(x) * torch.rand_like(_last(x)),
    "a map in channels last": lambda x: F.dropout(_last(x).contiguous().permute(0, 3, 1, 2), 0.5),
    "alpha dropout": lambda x: F.alpha_dropout(_last(x), 0.4, True),
    "alpha dropout of exchanged sides": lambda x: F.alpha_dropout((x * 1).transpose(2, 3), 0.4, True),
    "softmax in another type": lambda x: _last(x).softmax(-1, torch.float32).double() + _last(x),
    "softmax of a map in another type": lambda x: x.float().softmax(1, torch.float64) * x,
    "cumulative sum in another type": lambda x: torch.cumsum(_last(x), -1, dtype=torch.float32).double(),
    "functional softmax": lambda x: F.softmax(_last(x), -1) * F.softmin(_last(x), -1),
    "a norm of negative order": lambda x: x.norm(p=-1) * x,
    "a place at infinity": lambda x: F.grid_sample(
        x, tensor(1, 2, 5, 7, 2).where(tensor(2, 2, 5, 7, 2) < 1, torch.inf), "nearest", align_corners=False
    ),
}


def _differences(grid: str) -> dict[str, float]:
    return function_differences(FUNCTIONS, tensor(0, *SHAPE), Partition(*CUTS[grid]))


@cache
def differences(grid: str) -> list[dict[str, float]]:
    found: list[dict[str, float]] = on_ranks(Grid.parse(grid).size, _differences, grid)
    return found


@pytest.mark.parametrize("grid", CUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_uneven_parts_draw_and_compute_as_one_process(name: str, grid: str) -> None:
    assert all(found[name] < 1e-12 for found in differences(grid))
