"""Rules for functions along dimensions of which every rank has all: matrices, normalisations, softmax.

Knows: parameters, statistics of layer normalisation over divided dimensions. Does not know: sums of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cotswold.kernels.operands import accumulation_dtype
from cotswold.mesh.maps.array import DistributedArray, arranged, array_of, own_part
from cotswold.mesh.maps.layout import plain
from cotswold.mesh.ranks.collectives import all_reduce_backward, all_reduce_forward
from cotswold.mesh.rules.arrays.operands import dim_of, entered, needs_whole, whole_dim
from cotswold.mesh.rules.arrays.shape import Distributed
from cotswold.mesh.rules.registry import array_rule


@array_rule("linear")
def linear(input: Distributed, weight: Tensor, bias: Tensor | None = None) -> Any:
    """Fully connected layer over the last dimension."""
    needs_whole(not isinstance(input, Distributed) or isinstance(weight, Distributed))
    needs_whole(isinstance(bias, Distributed))
    x = array_of(input)
    at = whole_dim(x, -1)
    local = F.linear(x.local, *entered(x.mesh, weight, bias))
    if weight.dim() == 1:
        return arranged(local, x.axes.reduced((at,), False), x.mesh)
    return arranged(local, x.axes.with_dim(at, plain(local.shape[at])), x.mesh)


def _register_along(name: str, default: int | None = None) -> None:
    # a type behind the dimension belongs to torch's function; the functional one has a stack level there
    function = getattr(torch, name, None) or getattr(F, name)

    @array_rule(name)
    def along(input: Distributed, dim: Any = default, *args: Any, **kwargs: Any) -> Any:
        needs_whole(dim is None)
        x = array_of(input)
        at = whole_dim(x, dim)
        kwargs.pop("_stacklevel", None)
        local = function(x.local, at, *args, **kwargs)
        return arranged(local, x.axes.with_dim(at, plain(local.shape[at])), x.mesh)


for _name, _default in (
    ("softmax", None),
    ("log_softmax", None),
    ("softmin", None),
    ("glu", -1),
    ("cumsum", None),
    ("cumprod", None),
    ("logcumsumexp", None),
):
    _register_along(_name, _default)


@array_rule("normalize")
def normalize(input: Distributed, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Any:
    """Divide by the norm along a dimension."""
    x = array_of(input)
    return arranged(F.normalize(x.local, p, whole_dim(x, dim), eps), x.axes, x.mesh)


@array_rule("layer_norm")
def layer_norm(
    input: Distributed,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    """Layer normalisation over the last dimensions."""
    x, shape = _normalised(input, normalized_shape)
    if not x.axes.cut_dims & set(range(x.dim() - len(shape), x.dim())):
        weight, bias = entered(x.mesh, weight, bias)
        local = F.layer_norm(x.local, shape, weight, bias, eps)
        return arranged(local, x.axes, x.mesh)
    values, dims = x.local.to(accumulation_dtype(x.dtype)), tuple(range(-len(shape), 0))
    middle = all_reduce_forward(values.sum(dims, keepdim=True), x.mesh) / prod(shape)
    return _scaled(values - all_reduce_backward(middle, x.mesh), x, shape, weight, bias, eps)


@array_rule("rms_norm")
def rms_norm(
    input: Distributed,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Any:
    """Normalisation by the root mean square over the last dimensions."""
    x, shape = _normalised(input, normalized_shape)
    if not x.axes.cut_dims & set(range(x.dim() - len(shape), x.dim())):
        (weight,) = entered(x.mesh, weight)
        return arranged(F.rms_norm(x.local, shape, weight, eps), x.axes, x.mesh)
    values = x.local.to(accumulation_dtype(x.dtype))
    least = torch.finfo(x.dtype).eps if eps is None else eps
    return _scaled(values, x, shape, weight, None, least)


def _normalised(input: Distributed, shape: Sequence[int]) -> tuple[DistributedArray, list[int]]:
    x, wanted = array_of(input), list(shape)
    needs_whole(list(x.shape[x.dim() - len(wanted) :]) != wanted)  # torch reports it
    cut = {dim_of(x, at) for at in range(-len(wanted), 0)} & x.axes.cut_dims
    needs_whole(bool(cut) and cut != x.axes.cut_dims)
    return x, wanted


def _scaled(
    away: Tensor,
    x: DistributedArray,
    shape: list[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Any:
    """Divide values by their root mean square over the last dimensions and all ranks."""
    dims = tuple(range(-len(shape), 0))
    square = all_reduce_forward((away * away).sum(dims, keepdim=True), x.mesh) / prod(shape)
    out = away * all_reduce_backward(torch.rsqrt(square + eps), x.mesh)
    out = out if weight is None else out * own_part(weight, x.axes, x.mesh)
    out = out if bias is None else out + own_part(bias, x.axes, x.mesh)
    return arranged(out.to(x.dtype), x.axes, x.mesh)
