"""Rules for normalisations with statistics over space: those of the whole map.

Knows: means and variances over ranks, running statistics. Does not know: windows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cotswold.errors import UserError
from cotswold.kernels.operands import accumulation_dtype
from cotswold.mesh.maps.map import DistributedMap
from cotswold.mesh.ranks.collectives import all_reduce_backward, all_reduce_forward
from cotswold.mesh.ranks.mesh import Mesh
from cotswold.mesh.rules.operands import gradients, refuse_other_maps
from cotswold.mesh.rules.registry import rule

Gather = Callable[[Tensor], list[Tensor]]
"""Gathers the tensors of several ranks, which have equal shapes."""
_Groups = tuple[Mesh, int, int, float]
"""The ranks, the groups of an image's channels, the values of a group on all ranks, and epsilon."""


def _moments(mesh: Mesh, values: Tensor, dims: tuple[int, ...], count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Centred values, mean and variance (without Bessel's correction) over ``dims`` and all ranks."""
    mean = all_reduce_forward(values.sum(dims, keepdim=True), mesh) / count
    away = values - all_reduce_backward(mean, mesh)
    return away, mean, all_reduce_forward((away * away).sum(dims, keepdim=True), mesh) / count


def moments(values: Tensor, dims: Sequence[int]) -> Tensor:
    """Return the count, the mean and the sum of squared deviations of each channel, ``(3, channel)``."""
    count = values.numel() // max(values.shape[1], 1)
    if not count:
        return values.new_zeros((3, values.shape[1]))
    mean = values.mean(list(dims), keepdim=True)
    squares = (values - mean).square_().sum(list(dims))
    return torch.stack([torch.full_like(squares, count), mean.flatten(), squares])


def pooled(own: Tensor, gathers: Sequence[Gather]) -> Tensor:
    """Return the moments of the values of all ranks, from those of each.

    One message carries count, mean and squares, where a mean and then deviations from it need two. Pooling
    deviations from each rank's mean loses no digits, unlike a sum of squares.

    Source: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
    variances", 1979.
    """
    for gather in gathers:
        count, mean, squares = torch.stack(gather(own)).unbind(1)
        total = count.sum(0)
        whole = (count * mean).sum(0) / total.clamp(min=1)
        own = torch.stack([total, whole, (squares + count * (mean - whole).square()).sum(0)])
    return own


def _scaled(away: Tensor, scale: Tensor, bias: Tensor | None, x: DistributedMap) -> DistributedMap:
    out = away * all_reduce_backward(scale, x.mesh)
    out = out if bias is None else out + all_reduce_backward(bias, x.mesh)[:, None, None]
    return x.like(out.to(x.dtype))


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
    """Batch normalisation with statistics over images, space and ranks; running ones are replicated."""
    refuse_other_maps("batch_norm", running_mean, running_var, weight, bias)
    count = input.numel() // input.shape[1]
    if training:
        if count < 2:
            raise ValueError(
                f"Expected more than 1 value per channel when training, got input size {input.shape}"
            )
        values = input.local.to(accumulation_dtype(input.dtype))
        out: tuple[Tensor, Tensor, Tensor] = _BatchNorm.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
            values, weight, bias, (input.mesh, count, eps)
        )
        with torch.no_grad():
            if running_mean is not None:
                running_mean.lerp_(out[1].to(running_mean.dtype), momentum)
            if running_var is not None:
                running_var.lerp_((out[2] * (count / (count - 1))).to(running_var.dtype), momentum)
        return input.like(out[0].to(input.dtype))
    if running_mean is None or running_var is None:
        raise UserError("batch_norm needs running statistics in evaluation mode")
    values = input.local.to(accumulation_dtype(input.dtype))
    scale = torch.rsqrt(running_var.to(accumulation_dtype(running_var.dtype)) + eps)
    scale = (scale if weight is None else scale * weight)[:, None, None]
    return _scaled(values - running_mean[:, None, None], scale, bias, input)


class _BatchNorm(torch.autograd.Function):
    """Values normalised over images, space and ranks, and their mean and variance, without gradients.

    It needs one message forward and one backward.
    """

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, weight: Tensor | None, bias: Tensor | None, how: tuple[Mesh, int, float]
    ) -> tuple[Tensor, Tensor, Tensor]:
        mesh, count, eps = how
        _, mean, squares = pooled(moments(values, (0, 2, 3)), [mesh.gather])
        away, var = values - mean[:, None, None], squares / count
        scale = torch.rsqrt(var + eps)
        ctx.save_for_backward(values, weight, bias, mean, scale)
        ctx.how = how
        ctx.mark_non_differentiable(mean, var)
        out = away.mul_((scale if weight is None else scale * weight)[:, None, None])
        return out if bias is None else out.add_(bias[:, None, None]), mean, var

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *__: Any) -> tuple[Tensor | None, ...]:
        values, weight, bias, mean, scale = ctx.saved_tensors
        mesh, count, _ = ctx.how
        needed = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # the gradient will be differentiated
            out = _composed(values, weight, bias, *ctx.how)
            return *gradients(out, (values, weight, bias), needed, grad), None
        unit = (values - mean[:, None, None]).mul_(scale[:, None, None])
        sums = mesh.sum_in_place(torch.stack([grad.sum((0, 2, 3)), (grad * unit).sum((0, 2, 3))]))
        to_values = None
        if needed[0]:
            slope = (scale if weight is None else scale * weight)[:, None, None]
            shared = (sums / count)[:, :, None, None]
            to_values = (grad - shared[0] - unit.mul_(shared[1])).mul_(slope)
        return to_values, sums[1] if needed[1] else None, sums[0] if needed[2] else None, None


def _composed(
    values: Tensor, weight: Tensor | None, bias: Tensor | None, mesh: Mesh, count: int, eps: float
) -> Tensor:
    """The same result by functions that autograd can differentiate."""
    away, _, var = _moments(mesh, values, (0, 2, 3), count)
    scale = torch.rsqrt(var + eps)
    out = away * all_reduce_backward(scale if weight is None else scale * weight[:, None, None], mesh)
    return out if bias is None else out + all_reduce_backward(bias, mesh)[:, None, None]


class _GroupNorm(torch.autograd.Function):
    """Values normalised in groups of each image's channels over ranks, and the groups' means and variances.

    It needs one message forward and one backward. The gradients of weight and bias are those of this rank's
    part.
    """

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, weight: Tensor | None, bias: Tensor | None, how: _Groups
    ) -> tuple[Tensor, Tensor, Tensor]:
        mesh, groups, count, eps = how
        _, mean, squares = pooled(moments(_grouped(values, groups), (0, 2, 3)), [mesh.gather])
        var = squares / count
        scale = torch.rsqrt(var + eps)
        ctx.save_for_backward(values, weight, bias, mean, scale)
        ctx.how = how
        ctx.mark_non_differentiable(mean, var)
        out = (values - _each(mean, values)).mul_(_weighted(_each(scale, values), weight))
        return out if bias is None else out.add_(bias[:, None, None]), mean, var

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *__: Any) -> tuple[Tensor | None, ...]:
        values, weight, bias, mean, scale = ctx.saved_tensors
        mesh, groups, count, _ = ctx.how
        needed = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # the gradient will be differentiated
            out = _composed_groups(values, weight, bias, ctx.how)
            return *gradients(out, (values, weight, bias), needed, grad), None
        unit = (values - _each(mean, values)).mul_(_each(scale, values))
        sums = torch.stack([grad.sum((2, 3)), (grad * unit).sum((2, 3))])
        to_values = None
        if needed[0]:
            own = sums if weight is None else sums * weight
            shared = mesh.sum_in_place(own.view(2, len(mean), own.shape[2] // groups).sum(2)) / count
            to_values = _weighted(grad, weight) - _each(shared[0], values)
            to_values = to_values.sub_(unit.mul_(_each(shared[1], values))).mul_(_each(scale, values))
        to_weight, to_bias = sums[1].sum(0) if needed[1] else None, sums[0].sum(0) if needed[2] else None
        return to_values, to_weight, to_bias, None


def _grouped(values: Tensor, groups: int) -> Tensor:
    """Return values as one image, whose channels are the groups of all images."""
    images, channels, height, width = values.shape
    return values.reshape(1, images * groups, channels // groups * height, width)


def _each(of_groups: Tensor, values: Tensor) -> Tensor:
    """Return one number of each group for each channel of its image, ``(image, channel, 1, 1)``."""
    images, channels = values.shape[:2]
    repeats = images * channels // max(len(of_groups), 1)
    return of_groups.repeat_interleave(repeats).view(images, channels, 1, 1)


def _weighted(values: Tensor, weight: Tensor | None) -> Tensor:
    return values if weight is None else values * weight[:, None, None]


def _composed_groups(values: Tensor, weight: Tensor | None, bias: Tensor | None, how: _Groups) -> Tensor:
    """The same result by functions that autograd can differentiate."""
    mesh, groups, count, eps = how
    away, _, var = _moments(mesh, _grouped(values, groups), (0, 2, 3), count)
    scale = all_reduce_backward(torch.rsqrt(var + eps), mesh)
    out = _weighted(away.view(values.shape) * _each(scale.flatten(), values), weight)
    return out if bias is None else out + bias[:, None, None]


def _normalised_groups(
    input: DistributedMap, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[DistributedMap, Tensor, Tensor]:
    """Return the normalised map, and the means and variances of the groups of all images."""
    mesh = input.mesh
    learnt = [None if one is None else all_reduce_backward(one, mesh) for one in (weight, bias)]
    values = input.local.to(accumulation_dtype(input.dtype))
    how = mesh, groups, math.prod(input.shape[1:]) // groups, eps
    out, mean, var = _GroupNorm.apply(values, *learnt, how)  # type: ignore[no-untyped-call]  # torch's
    return input.like(out.to(input.dtype)), mean, var


@rule("group_norm")
def group_norm(
    input: DistributedMap,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> DistributedMap:
    """Group normalisation with statistics of each image's groups of channels, over space and all ranks."""
    refuse_other_maps("group_norm", weight, bias)
    if input.shape[1] % num_groups:
        raise UserError(f"group_norm cannot divide {input.shape[1]} channels into {num_groups} groups")
    return _normalised_groups(input, num_groups, weight, bias, eps)[0]


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
    """Instance normalisation with statistics of each image's channels, over space and all ranks.

    Running statistics are replicated: means over images of those of the images.
    """
    refuse_other_maps("instance_norm", running_mean, running_var, weight, bias)
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    count = math.prod(input.shape[2:])
    if count < 2:
        raise ValueError(
            f"Expected more than 1 spatial element when training, got input size {tuple(input.shape)}"
        )
    images, channels = input.shape[:2]
    out, mean, var = _normalised_groups(input, channels, weight, bias, eps)
    with torch.no_grad():
        for running, found in ((running_mean, mean), (running_var, var * (count / (count - 1)))):
            if running is not None:
                running.lerp_(found.view(images, channels).mean(0).to(running.dtype), momentum)
    return out
