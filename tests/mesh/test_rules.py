"""Torch's functions on distributed maps return the results and gradients of whole tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from tests.support.mesh.ranks import on_ranks
from torch import Tensor
from torch.nn import functional as F

from cotswold.geometry import Grid, Partition
from cotswold.mesh import DistributedMap, Mesh

SHAPE = (2, 4, 7, 5)
GRIDS = ("2x2", "1x3", "3x2")


def _whole(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape or SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _in_place(x: Any) -> Any:
    y = x * 1
    y += x
    y.mul_(2)
    return F.relu(y, inplace=True)


def _moved(x: Any) -> Any:
    """Return the lower rows only, whose cuts change when they leave the map and come back."""
    return F.pad(F.pad(x, (0, 0, -3, 0)), (0, 0, 3, 0))


def _weighted(name: str, *args: Any, **kwargs: Any) -> Any:
    """Return a loss with weights, which torch's stubs lack."""
    return getattr(F, name)(*args, **kwargs)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "operators": lambda x: -(1 - x) * 2 / (x * x + 1) + x**2 - abs(x),
    "in place": _in_place,
    "methods": lambda x: x.sigmoid().clamp(0.2, 0.8).add(x, alpha=2),
    "activations": lambda x: F.gelu(x) + F.silu(x) + F.elu(x) + F.softplus(x) + F.logsigmoid(x),
    "a whole map beside": lambda x: x * _whole(1) + _whole(2, 1, 4, 1, 1) + _whole(3, 5) * _whole(4, 7, 1),
    "maps of other cuts": lambda x: x * _moved(x) + F.mse_loss(_moved(x), x),
    "maps of other cuts, joined": lambda x: torch.cat([x, _moved(x)], 1),
    "where": lambda x: torch.where(x > 0, x, 0.1 * x),
    "cat": lambda x: torch.cat([x, _whole(1)[:, :2], x * x], 1),
    "chunk": lambda x: torch.mul(*x.chunk(2, 1)),
    "split": lambda x: x.split([1, 3], 1)[1],
    "slices": lambda x: x[:, 1:3] + x[..., :, :][:, :2],
    "softmax": lambda x: F.softmax(x, 1) + x.log_softmax(dim=1),
    "normalize": F.normalize,
    "glu": lambda x: F.glu(x, 1),
    "prelu": lambda x: F.prelu(x, torch.linspace(0, 1, 4).double()),
    "shuffle": lambda x: F.channel_shuffle(x, 2),
    "sum": lambda x: x.sum() + x.sum(dim=(2, 3)).sum(),
    "sum of channels": lambda x: x.sum(1, keepdim=True),
    "mean": lambda x: x.mean((2, 3)),
    "mean of columns, then rows": lambda x: x.mean(3).mean(2),
    "mean of rows": lambda x: x.mean(2, keepdim=True).squeeze(2),
    "var": lambda x: x.var((0, 2, 3)) + x.std((0, 2, 3), correction=0),
    "amax": lambda x: F.relu(x).round().amax((2, 3)) + x.amax(dim=(-1, -2)),
    "max": lambda x: x.max() - x.min(),
    "adaptive average": lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
    "adaptive average of columns": lambda x: F.adaptive_avg_pool2d(x, (None, 1)),
    "adaptive maximum": lambda x: F.adaptive_max_pool2d((2 * x).round(), (2, 3)),
    "flatten": lambda x: x.flatten(1) @ _whole(1, 140, 3),
    "view": lambda x: x.view(2, -1).cos(),
    "mse": lambda x: F.mse_loss(x, _whole(1)) + F.mse_loss(x, x.detach() * 2, reduction="sum"),
    "other losses": lambda x: (
        F.l1_loss(x, _whole(1)) + F.smooth_l1_loss(x, _whole(2)) + F.huber_loss(x, x * 3)
    ),
    "binary cross entropy": lambda x: F.binary_cross_entropy_with_logits(
        x, _whole(1).sigmoid(), pos_weight=_whole(2, 4, 1, 1).exp()
    ),
    "losses with weights": lambda x: (
        _weighted("mse_loss", x, _whole(1), weight=_whole(2).exp())
        + _weighted("mse_loss", x, _whole(1), weight=x * x)
        + _weighted("huber_loss", x, _whole(1), weight=_whole(2).exp())
        + F.binary_cross_entropy(x.sigmoid(), _whole(1).sigmoid(), _whole(2).exp())
    ),
    "unreduced loss with weights": lambda x: _weighted(
        "mse_loss", x, _whole(1), reduction="none", weight=_whole(2)
    ),
    "unreduced loss": lambda x: F.mse_loss(x, _whole(1), reduction="none"),
    "cross entropy": lambda x: F.cross_entropy(x, _whole(1, 2, 7, 5).gt(0).long() * 3 - 1, ignore_index=-1),
    "batch norm": lambda x: F.batch_norm(x, _whole(1, 4), _whole(2, 4).exp(), _whole(3, 4), _whole(4, 4)),
    "batch norm in training": lambda x: F.batch_norm(x, None, None, training=True),
    "group norm": lambda x: F.group_norm(x, 2, _whole(3, 4), _whole(4, 4)),
    "instance norm": lambda x: F.instance_norm(x, weight=_whole(3, 4), bias=_whole(4, 4)),
    "powers of windows": lambda x: F.lp_pool2d(x, 2, 3, 2, ceil_mode=True),
    "normalisation over channels": lambda x: F.local_response_norm(x, 3),
    "channels to pixels": lambda x: F.pixel_shuffle(x, 2),
    "pad": lambda x: F.pad(x, (1, -2, 3, 0), value=0.5),
    "bilinear": lambda x: F.interpolate(x, scale_factor=(1.7, 2), mode="bilinear"),
    "bilinear, corners aligned": lambda x: F.interpolate(x, (3, 12), mode="bilinear", align_corners=True),
    "bilinear to one": lambda x: F.interpolate(x, size=1, mode="bilinear"),
    "expand": lambda x: x * x.mean((2, 3), keepdim=True).expand_as(x),
    "max over channels": lambda x: torch.max(x, dim=1, keepdim=True)[0] * torch.max(x, x * x),
    "interpolate": lambda x: F.interpolate(x, scale_factor=(3, 2)) + F.interpolate(x, size=(21, 10)),
    "transposed": lambda x: F.conv_transpose2d(
        x, _whole(1, 4, 2, 3, 2), _whole(2, 4), 3, 1, (2, 0), 2, (2, 1)
    ),
    "transposed, steps beyond the kernel": lambda x: F.conv_transpose2d(x, _whole(1, 4, 2, 1, 2), stride=3),
    "maximum of windows, ceil": lambda x: F.max_pool2d(x, (3, 2), 3, (1, 0), ceil_mode=True),
    "average of windows, ceil": lambda x: F.avg_pool2d(x, 4, 3, 2, ceil_mode=True),
    "average with a divisor": lambda x: F.avg_pool2d(x, (2, 3), divisor_override=5),
    "dropout": lambda x: F.dropout(x, 0.4),
    "dropout of channels": lambda x: F.dropout2d(x, 0.4),
}


def _applied(function: Callable[[Any], Any], x: Any, leaf: Tensor) -> tuple[Tensor, Tensor]:
    torch.manual_seed(11)
    out = function(x)
    weighted = out * torch.linspace(1, 2, out.shape.numel(), dtype=torch.float64).view(out.shape)
    (grad,) = torch.autograd.grad(weighted.sum(), leaf)
    return (out.full_tensor() if isinstance(out, DistributedMap) else out).detach(), grad


def _differences(grid: str) -> dict[str, float]:
    mesh = Mesh.of(grid)
    # cuts of no regular kind, in 3x2 a row of ranks has nothing
    cuts = {"2x2": ((0, 2, 7), (0, 4, 5)), "1x3": ((0, 7), (0, 1, 3, 5)), "3x2": ((0, 3, 3, 7), (0, 1, 5))}
    partition, found = Partition(*cuts[grid]), {}
    for name, function in FUNCTIONS.items():
        alone = _whole(0).requires_grad_()
        ours = _whole(0).requires_grad_()
        rows, columns = partition.box(mesh.rank).slices
        x = DistributedMap(ours[:, :, rows, columns], partition, mesh)
        wanted = _applied(function, alone, alone)
        got = _applied(function, x, ours)
        own = torch.zeros_like(ours)
        own[:, :, rows, columns] = 1  # a rank's part has gradients of that part
        pairs = ((got[0], wanted[0]), (got[1] * own, wanted[1] * own))
        apart = [(a - b).abs().max() / b.abs().max().clamp_min(1e-30) for a, b in pairs]
        found[name] = torch.stack(apart).max().item()  # which a NaN is
    return found


@cache
def differences(grid: str) -> list[dict[str, float]]:
    found: list[dict[str, float]] = on_ranks(Grid.parse(grid).size, _differences, grid)
    return found


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_a_cut_map_is_that_of_the_whole(name: str, grid: str) -> None:
    assert all(found[name] < 1e-12 for found in differences(grid))
