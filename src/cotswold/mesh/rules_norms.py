"""Rules for normalisations whose statistics are over space: they are those of the whole map.

Knows: means and variances over ranks, running statistics. Does not know: windows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cotswold.errors import UserError
from cotswold.mesh.map import DistributedMap
from cotswold.mesh.rules import only_maps, rule
from cotswold.mesh.whole import entered, summed


def _moments(
    x: DistributedMap, values: Tensor, dims: tuple[int, ...], count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Values less their mean, mean and variance (without Bessel's correction) over ``dims`` and all ranks."""
    mean = summed(values.sum(dims, keepdim=True), x.mesh) / count
    away = values - entered(mean, x.mesh)
    return away, mean, summed((away * away).sum(dims, keepdim=True), x.mesh) / count


def _scaled(away: Tensor, scale: Tensor, bias: Tensor | None, x: DistributedMap) -> DistributedMap:
    out = away * entered(scale, x.mesh)
    return x.like(out if bias is None else out + entered(bias, x.mesh)[:, None, None])


@rule("batch_norm")
def batch_norm(
    input: DistributedMap,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> DistributedMap:
    """Statistics over images, space and all ranks; running ones are the same on every rank."""
    only_maps("batch_norm", running_mean, running_var, weight, bias)
    count = input.numel() // input.shape[1]
    if training:
        if count < 2:
            raise ValueError(
                f"Expected more than 1 value per channel when training, got input size {input.shape}"
            )
        away, mean, var = _moments(input, input.local, (0, 2, 3), count)
        with torch.no_grad():
            if running_mean is not None:
                running_mean.lerp_(mean.flatten().to(running_mean.dtype), momentum)
            if running_var is not None:
                unbiased = var.flatten() * (count / (count - 1))
                running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    else:
        if running_mean is None or running_var is None:
            raise UserError("batch_norm needs running statistics in evaluation mode")
        away, var = input.local - running_mean[:, None, None], running_var[None, :, None, None]
    scale = torch.rsqrt(var + eps)
    return _scaled(away, scale if weight is None else scale * weight[:, None, None], bias, input)


@rule("group_norm")
def group_norm(
    input: DistributedMap,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> DistributedMap:
    """Statistics of each image's groups of channels, over space and all ranks."""
    only_maps("group_norm", weight, bias)
    images, channels = input.shape[:2]
    if channels % num_groups:
        raise UserError(f"group_norm cannot divide {channels} channels into {num_groups} groups")
    apart = input.local.reshape(images, num_groups, channels // num_groups, *input.box.shape)
    away, _, var = _moments(input, apart, (2, 3, 4), math.prod(input.shape[1:]) // num_groups)
    scale = (
        torch.rsqrt(var + eps).expand(-1, -1, channels // num_groups, 1, 1).reshape(images, channels, 1, 1)
    )
    away = away.reshape(input.local.shape)
    return _scaled(away, scale if weight is None else scale * weight[:, None, None], bias, input)


@rule("instance_norm")
def instance_norm(
    input: DistributedMap,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> DistributedMap:
    """Statistics of each image's channels, over space and all ranks."""
    if running_mean is not None or running_var is not None:
        raise UserError("instance_norm over ranks keeps no running statistics; use track_running_stats=False")
    return group_norm(input, input.shape[1], weight, bias, eps)
