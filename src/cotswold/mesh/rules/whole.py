"""Rules for functions that every rank computes on the whole map, and for masks and slopes drawn at random.

Knows: which functions need the whole map, that one process would draw the same numbers. Does not know:
windows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from cotswold.mesh.maps.array import array_of
from cotswold.mesh.maps.map import DistributedMap
from cotswold.mesh.rules.arrays.operands import gathered, memory_order, notice_whole
from cotswold.mesh.rules.operands import widest_map
from cotswold.mesh.rules.pointwise import pointwise
from cotswold.mesh.rules.registry import rule


def whole(name: str, function: Callable[..., Any], args: Any, kwargs: Any, divided: bool = False) -> Any:
    """Call a function with gathered maps on every rank, and warn once per layer.

    Args:
        name: The function's name, for the warning.
        function: The function of torch.
        args: Positional arguments, with maps.
        kwargs: Other arguments.
        divided: True to distribute the results again, without a message; otherwise they are replicated.
    """
    maps = [one for one in tree_leaves((args, kwargs)) if isinstance(one, DistributedMap)]
    out = gathered(function, args, kwargs, name=name, divided=divided)
    return _divided(out, widest_map(maps)) if divided else out


def _divided(out: Any, like: DistributedMap) -> Any:
    """Distribute whole maps if every rank gets a part of each."""
    grid = like.mesh.grid
    if isinstance(out, tuple):
        return tuple(_divided(one, like) for one in out)
    if out.dim() != 4 or out.shape[2] < grid.rows or out.shape[3] < grid.columns:
        return out
    found = DistributedMap.of(out, like.mesh)
    found.passing = True
    return found


def _register(name: str, function: Callable[..., Any], divided: bool = False) -> None:
    @rule(name)
    def apply(*args: Any, **kwargs: Any) -> Any:
        return whole(name, function, args, kwargs, divided)


for _name in (
    *("fft", "ifft", "rfft", "irfft", "hfft", "ihfft", "fft2", "ifft2", "rfft2", "irfft2", "hfft2", "ihfft2"),
    *("fftn", "ifftn", "rfftn", "irfftn", "hfftn", "ihfftn", "fftshift", "ifftshift"),
):
    _register(f"fft_{_name}", getattr(torch.fft, _name))

for _name in ("conv3d", "conv_transpose3d", "avg_pool3d", "max_pool3d", "adaptive_avg_pool3d"):
    _register(_name, getattr(F, _name))


@rule("unfold")
def unfold(input: DistributedMap, *args: Any, **kwargs: Any) -> Tensor:
    """Windows of the whole map: those of torch.nn.functional.unfold, or of the method of tensors."""
    of_tensor = len(args) == 3 or "dimension" in kwargs
    out: Tensor = whole("unfold", Tensor.unfold if of_tensor else F.unfold, (input, *args), kwargs)
    return out


@rule("fractional_max_pool2d", "fractional_max_pool2d_with_indices")
def fractional_max_pool2d(input: DistributedMap, *args: Any, **kwargs: Any) -> Any:
    """Max pooling of windows whose places are drawn at random, equal on every rank."""
    input.mesh.consistency_checks.check_rng(input.device.type)
    return whole("fractional_max_pool2d", F.fractional_max_pool2d, (input, *args), kwargs, divided=True)


_register("max_unpool2d", F.max_unpool2d, divided=True)


@rule("rrelu")
def rrelu(
    input: DistributedMap,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Any:
    """Leaky ReLU with slopes at random, drawn for the negative values only, in their order."""
    if not training:
        return pointwise(F.leaky_relu, input, (lower + upper) / 2, inplace)
    input.mesh.consistency_checks.check_rng(input.device.type)
    notice_whole("rrelu (the signs that decide which numbers it draws)", input, divided=True)
    negative = input.like((input.local.detach() <= 0).to(torch.uint8)).full_tensor()
    signs = 1 - 2 * negative.to(input.dtype)
    slopes = torch.rrelu(signs.contiguous(), lower, upper, True) * signs
    return _with(input, inplace, _part(slopes, input))


@rule("alpha_dropout")
def alpha_dropout(
    input: DistributedMap, p: float = 0.5, training: bool = False, inplace: bool = False, train: bool = False
) -> Any:
    """Apply this rank's part of the mask that one process would draw."""
    order = memory_order(array_of(input))
    zeros = input.local.new_zeros([input.shape[dim] for dim in order])
    return _dropped(
        input, p, training or train, inplace, zeros.permute([order.index(dim) for dim in range(4)])
    )


@rule("feature_alpha_dropout")
def feature_alpha_dropout(
    input: DistributedMap, p: float = 0.5, training: bool = False, inplace: bool = False, train: bool = False
) -> Any:
    """Mask whole channels, the same on every rank."""
    return _dropped(input, p, training or train, inplace, input.local.new_zeros((*input.shape[:2], 1, 1)))


def _dropped(x: DistributedMap, p: float, training: bool, inplace: bool, zeros: Tensor) -> Any:
    """Alpha dropout: kept values times a factor, plus an offset that says which are kept."""
    if not training or p == 0:
        return x
    x.mesh.consistency_checks.check_rng(x.device.type)
    if zeros.shape[2:] == x.shape[2:]:
        offset: Any = _part(torch.alpha_dropout(zeros, p, True), x)
    else:
        offset = torch.feature_alpha_dropout(zeros, p, True)
    if p == 1:
        return _with(x, inplace, 0.0)
    kept = (offset > 0).to(x.dtype) / math.sqrt((_SELU * _SELU * p + 1) * (1 - p))
    return _with(x, inplace, kept, offset)


_SELU = 1.7580993408473766
"""Minus the limit of SELU for small values: scale times alpha."""


def _part(whole: Tensor, x: DistributedMap) -> DistributedMap:
    rows, columns = x.box.slices
    return x.like(whole[:, :, rows, columns].clone())  # frees the rest


def _with(x: DistributedMap, inplace: bool, factor: Any, offset: Any = None) -> Any:
    out = pointwise(Tensor.mul_ if inplace else Tensor.mul, x, factor)
    return out if offset is None else pointwise(Tensor.add_ if inplace else Tensor.add, out, offset)
