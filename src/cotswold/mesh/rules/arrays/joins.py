"""Rules for functions that join arrays, and that create or draw values like them.

Knows: tokens around pixels, random numbers that one process would draw. Does not know: reshapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cotswold.geometry import Partition
from cotswold.mesh.maps.array import DistributedArray, arranged, array_of, own_part
from cotswold.mesh.maps.layout import Axis, Dim, Tokens, plain
from cotswold.mesh.ranks.collectives import all_reduce_backward
from cotswold.mesh.rules.arrays.operands import arrays_in, dim_of, local_operand, memory_order, needs_whole
from cotswold.mesh.rules.arrays.pointwise import pointwise
from cotswold.mesh.rules.arrays.shape import Distributed, unsqueeze
from cotswold.mesh.rules.registry import array_rule
from cotswold.ops.layers.dropout import dropout_mask


@array_rule("cat", "concat", "concatenate")
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Any:
    """Join arrays along a dimension of which every rank has all, or tokens before and after all pixels."""
    found = list(arrays_in(tuple(tensors)))
    first = max(found, key=lambda one: one.numel())
    at = dim_of(first, dim)
    needs_whole(any(one.dim() != first.dim() for one in tensors))
    for one in tensors:  # torch reports other extents
        others = [one.shape[axis] == first.shape[axis] for axis in range(first.dim()) if axis != at]
        needs_whole(not all(others))
    if at in first.axes.cut_dims:
        return _with_tokens(tensors, first, at)
    needs_whole(any(at in one.axes.cut_dims for one in found))
    parts = []
    for one in tensors:
        like = first.axes.with_dim(at, plain(one.shape[at]))
        parts.append(local_operand(one, like, first.mesh))
    local = torch.cat(parts, at)
    return arranged(local, first.axes.with_dim(at, plain(local.shape[at])), first.mesh)


def _with_tokens(tensors: Sequence[Tensor], first: DistributedArray, at: int) -> Any:
    """Join replicated tokens, which the first rank takes, with the tokens of all ranks."""
    needs_whole(sum(isinstance(one, Distributed) for one in tensors) != 1)
    tokens = _tokens(first.axes.dims[at])
    place = next(number for number, one in enumerate(tensors) if isinstance(one, Distributed))
    before, after = tensors[:place], tensors[place + 1 :]
    counts = [sum(one.shape[at] for one in side) for side in (before, after)]

    def own(one: Tensor) -> Tensor:
        entered = all_reduce_backward(one, first.mesh)
        return entered if first.mesh.rank == 0 else entered.narrow(at, 0, 0)

    local = torch.cat([*map(own, before), first.local, *map(own, after)], at)
    joined = Tokens(tokens.before + counts[0], tokens.plane, tokens.after + counts[1])
    return arranged(local, first.axes.with_dim(at, (joined,)), first.mesh)


def _tokens(dim: Dim) -> Tokens:
    if len(dim) == 1 and isinstance(dim[0], Tokens):
        return dim[0]
    needs_whole([getattr(one, "side", None) for one in dim] != [0, 1])
    rows, columns = dim
    assert isinstance(rows, Axis) and isinstance(columns, Axis)
    return Tokens(0, Partition(rows.cuts, columns.cuts), 0)


@array_rule("stack")
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Any:
    """Join arrays along a new dimension."""
    first = next(one for one in tensors if isinstance(one, Distributed))
    needs_whole(any(tuple(one.shape) != tuple(first.shape) for one in tensors))
    at = dim % (first.dim() + 1)
    return cat(
        [unsqueeze(one, at) if isinstance(one, Distributed) else one.unsqueeze(at) for one in tensors], at
    )


def _register_new(name: str) -> None:
    method = getattr(Tensor, name)

    @array_rule(name)
    def new(input: Distributed, *args: Any, **kwargs: Any) -> Any:
        if name == "new_tensor":
            return torch.tensor(*args, **{"dtype": input.dtype, "device": input.device, **kwargs})
        source = array_of(input).local
        return method(source, *args, **kwargs)


for _name in ("new_empty", "new_full", "new_ones", "new_tensor", "new_zeros"):
    _register_new(_name)


@array_rule("empty_like")
def empty_like(input: Distributed, **kwargs: Any) -> Any:
    """Return an array with any values."""
    x = array_of(input)
    return arranged(torch.empty_like(x.local, **kwargs), x.axes, x.mesh)


def _like_whole(x: DistributedArray, dtype: torch.dtype | None = None) -> Tensor:
    """Return ones in the shape of the whole, in its order in memory."""
    order = memory_order(x)
    ones = x.local.new_ones([x.shape[dim] for dim in order], dtype=dtype)
    return ones.permute([order.index(dim) for dim in range(x.dim())])


def _register_draw(name: str) -> None:
    function = getattr(torch, name)

    @array_rule(name)
    def draw(input: Distributed, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
        x = array_of(input)
        x.mesh.consistency_checks.check_rng(x.device.type)
        drawn = function(_like_whole(x, dtype), *args, **kwargs)
        own = own_part(drawn.detach(), x.axes, x.mesh).clone()  # frees the rest
        return arranged(own.requires_grad_(drawn.requires_grad), x.axes, x.mesh)


for _name in ("rand_like", "randint_like", "randn_like"):
    _register_draw(_name)


@array_rule("dropout")
def dropout(
    input: Distributed, p: float = 0.5, training: bool = True, inplace: bool = False, train: bool = True
) -> Any:
    """Apply this rank's part of the mask that one process would draw."""
    if not training or not train or p == 0:
        return input
    x = array_of(input)
    x.mesh.consistency_checks.check_rng(x.device.type)
    mask = own_part(dropout_mask(_like_whole(x), p), x.axes, x.mesh).clone()  # frees the rest
    drawn = DistributedArray(mask, x.axes, x.mesh)
    return pointwise(Tensor.mul_ if inplace else Tensor.mul, (input, drawn), {})
