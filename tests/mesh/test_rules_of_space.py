"""Functions that read other places of a map return on ranks the results and gradients of whole tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from tests.support.mesh.compared import function_differences, tensor
from tests.support.mesh.ranks import on_ranks
from torch import Tensor
from torch.nn import functional as F

from cotswold.geometry import Grid, Partition

SHAPE = (2, 4, 8, 6)
# cuts of no regular kind, in 3x2 a row of ranks has nothing
CUTS = {
    "1x2": ((0, 8), (0, 4, 6)),
    "2x2": ((0, 3, 8), (0, 4, 6)),
    "1x3": ((0, 8), (0, 1, 3, 6)),
    "3x2": ((0, 3, 3, 8), (0, 1, 6)),
}


def _variation(x: Any) -> Any:
    return (x[:, :, 1:] - x[:, :, :-1]).abs().mean() + (x[..., 1:] - x[..., :-1]).square().sum()


def _assigned(x: Any) -> Any:
    y = x * 2
    y[:, :, ::2, 1:] = 0
    y[:, 1:3, 1:5, :2] = tensor(3, 2, 2, 4, 2)
    y[..., -1:] = x[..., :1]
    y[:, :, 0] = 1
    return y


def _transformed(x: Any) -> Any:
    theta = torch.tensor([[0.9, 0.2, 0.1], [-0.3, 1.1, 0.0]], dtype=x.dtype)
    theta = (theta * x.mean()).tanh() if x.requires_grad else theta
    return F.grid_sample(
        x, F.affine_grid(theta.expand(2, 2, 3), [2, 4, 5, 7], align_corners=False), align_corners=False
    )


def _places(seed: int = 4) -> Tensor:
    return tensor(seed, 2, 5, 3, 2)


def _resized(**how: Any) -> Callable[[Any], Any]:
    return lambda x: F.interpolate(x, **how)


def _unpooled(x: Any) -> Any:
    values, places = F.max_pool2d(x, 2, return_indices=True)
    return F.max_unpool2d(values * 2, places, [2, 2], output_size=x.shape[2:])


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "crop": lambda x: x[:, :, 1:-1, 2:5],
    "crop of a few rows": lambda x: x[:, 1:3, -2:],
    "crop of columns": lambda x: x[..., 1:3],
    "steps": lambda x: x[:, :, ::3, 1::2],
    "a row": lambda x: x[:, :, 3] * x[:, :, -1],
    "a pixel": lambda x: x[:, :, 3, 2],
    "narrow": lambda x: x.narrow(2, 3, 4).narrow(-1, 1, 2),
    "chunk": lambda x: torch.mul(*x.chunk(2, 2)),
    "split": lambda x: x.split([1, 3, 2], -1)[1] * torch.split(x, 3, dim=3)[0],
    "index_select": lambda x: x.index_select(2, torch.tensor([5, 1, 1, 7])),
    "total variation": _variation,
    "crop of a concatenation": lambda x: torch.cat([x[:, :, 2:6, 1:5], F.interpolate(x, size=(4, 4))], 1),
    "assignment": _assigned,
    "reflect": lambda x: F.pad(x, (3, 1, 0, 5), mode="reflect"),
    "replicate": lambda x: F.pad(x, (3, 9, 1, 0), mode="replicate"),
    "circular": lambda x: F.pad(x, (2, 1, 8, 3), mode="circular"),
    "circular, cropped": lambda x: F.pad(x, (2, -1, 0, 3), mode="circular"),
    "reflect, cropped": lambda x: F.pad(x, (2, -1, -3, 4), mode="reflect"),
    "replicate, cropped": lambda x: F.pad(x, (2, -1, -3, 4), mode="replicate"),
    "nearest": _resized(size=(13, 4)),
    "nearest by factors": _resized(scale_factor=(0.4, 1.7)),
    "nearest by factors, recomputed": _resized(scale_factor=(0.4, 1.7), recompute_scale_factor=True),
    "nearest-exact": _resized(size=(13, 4), mode="nearest-exact"),
    "nearest-exact by a factor": _resized(scale_factor=2, mode="nearest-exact"),
    "area": _resized(size=(5, 4), mode="area"),
    "area, larger": _resized(scale_factor=1.5, mode="area"),
    "bicubic": _resized(scale_factor=2, mode="bicubic"),
    "bicubic, smaller": _resized(size=(3, 5), mode="bicubic"),
    "bicubic, corners aligned": _resized(size=(11, 5), mode="bicubic", align_corners=True),
    "bilinear, antialias": _resized(size=(3, 5), mode="bilinear", antialias=True),
    "bilinear, antialias, larger": _resized(size=(11, 13), mode="bilinear", antialias=True),
    "bilinear, antialias, aligned": _resized(
        size=(3, 5), mode="bilinear", antialias=True, align_corners=True
    ),
    "bicubic, antialias": _resized(size=(3, 5), mode="bicubic", antialias=True),
    "bicubic, antialias, larger": _resized(scale_factor=1.3, mode="bicubic", antialias=True),
    "affine grid": _transformed,
    "grid": lambda x: F.grid_sample(x, _places(), align_corners=True),
    "grid, nearest": lambda x: F.grid_sample(x, _places(), mode="nearest", align_corners=False),
    "grid, bicubic": lambda x: F.grid_sample(
        x, _places(), mode="bicubic", padding_mode="border", align_corners=False
    ),
    "grid, reflection": lambda x: F.grid_sample(x, _places(), padding_mode="reflection", align_corners=False),
    "grid far outside": lambda x: F.grid_sample(x, _places() + 5, padding_mode="border", align_corners=False),
    "grid from a map": lambda x: F.grid_sample(
        tensor(1, 2, 3, 9, 9), _places() * x.mean(), align_corners=False
    ),
    "pixels to channels": lambda x: F.pixel_unshuffle(x, 2),
    "unfold": lambda x: F.unfold(x, 3, padding=1, stride=2),
    "unfold and fold": lambda x: F.fold(F.unfold(x, 3, padding=1), x.shape[2:], 3, padding=1),
    "unfold of tensors": lambda x: x.unfold(2, 3, 2).mean(-1),
    "maxima with indices": lambda x: torch.mul(*F.max_pool2d(x, 3, 2, 1, return_indices=True)),
    "maxima with indices, ceil": lambda x: torch.mul(
        *F.max_pool2d(x, (2, 3), 3, (1, 0), ceil_mode=True, return_indices=True)
    ),
    "unpooling": _unpooled,
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.3, True),
    "alpha dropout of all": lambda x: F.alpha_dropout(x, 1.0, True) + x,
    "alpha dropout in place": lambda x: F.alpha_dropout(x * 1, 0.3, True, inplace=True),
    "alpha dropout of channels": lambda x: F.feature_alpha_dropout(x, 0.3, True),
    "random leaky slopes": lambda x: F.rrelu(x, training=True) * torch.rand(()).double(),
    "random leaky slopes in place": lambda x: F.rrelu(x * 1, 0.1, 0.9, training=True, inplace=True),
    "mean leaky slopes": F.rrelu,
    "fractional pooling": lambda x: F.fractional_max_pool2d(x, 2, output_size=(4, 3)),
    "label smoothing": lambda x: F.cross_entropy(x, _classes(), ignore_index=-1, label_smoothing=0.1),
    "label smoothing with weights": lambda x: F.cross_entropy(
        x, _classes(), tensor(2, 4).exp(), ignore_index=-1, label_smoothing=0.1
    ),
    "sum with weights": lambda x: F.nll_loss(
        x, _classes(), tensor(2, 4).exp(), ignore_index=-1, reduction="sum"
    ),
    "unreduced classes": lambda x: F.cross_entropy(x, _classes(), ignore_index=-1, reduction="none"),
    "shares of classes": lambda x: F.cross_entropy(x, tensor(1, *SHAPE).softmax(1), tensor(2, 4).exp()),
    "instance norm, running": lambda x: F.instance_norm(x, *_running(), use_input_stats=False),
    "fft": lambda x: torch.fft.irfft2(torch.fft.rfft2(x) * tensor(2, 8, 4), s=x.shape[2:]),
}


def _classes() -> Tensor:
    return tensor(1, 2, 8, 6).gt(0).long() * 3 - 1


def _running() -> tuple[Tensor, Tensor]:
    return tensor(1, 4), tensor(2, 4).exp()


def _differences(grid: str) -> dict[str, float]:
    return function_differences(FUNCTIONS, tensor(0, *SHAPE), Partition(*CUTS[grid]))


@cache
def differences(grid: str) -> list[dict[str, float]]:
    found: list[dict[str, float]] = on_ranks(Grid.parse(grid).size, _differences, grid)
    return found


@pytest.mark.parametrize("grid", CUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_other_places_is_that_of_the_whole(name: str, grid: str) -> None:
    assert all(found[name] < 1e-12 for found in differences(grid))
