"""Rules for functions that join, split or reshape maps, and for random masks.

Knows: which dimensions are distributed. Does not know: windows, sums.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cotswold.errors import UserError
from cotswold.geometry import Partition
from cotswold.mesh.maps.array import array_of
from cotswold.mesh.maps.distributed_tensor import version_of
from cotswold.mesh.maps.map import DistributedMap, wrap_all
from cotswold.mesh.ranks.collectives import all_reduce_backward
from cotswold.mesh.rules.arrays.operands import memory_order
from cotswold.mesh.rules.arrays.shape import getitem as array_getitem
from cotswold.mesh.rules.operands import (
    NeedsWholeError,
    check_changeable,
    local_operand,
    redistribute,
    refuse_other_maps,
    widest_map,
)
from cotswold.mesh.rules.pointwise import pointwise
from cotswold.mesh.rules.registry import rule
from cotswold.mesh.rules.space import along_space, assign, indexed, of_space
from cotswold.ops.layers.dropout import dropout_mask


def _register_whole(name: str) -> None:
    method = getattr(Tensor, name)

    @rule(name)
    def all_gather(input: DistributedMap, *args: Any, **kwargs: Any) -> Any:
        out = method(input.full_tensor(), *args, **kwargs)
        if input.mesh.size > 1 and isinstance(out, Tensor) and input._whole is None:
            input.copies.add(out, version_of(out))
        return out


for _name in ("tolist", "numpy", "item"):
    _register_whole(_name)


@rule("cat", "concat", "concatenate")
def cat(tensors: Any, dim: int = 0) -> DistributedMap:
    """Concatenate maps along channels or images."""
    first = widest_map(list(tensors))
    if dim % 4 > 1:
        raise NeedsWholeError
    if any(isinstance(one, DistributedMap) and one.shape[2:] != first.shape[2:] for one in tensors):
        raise UserError("cat needs maps of one height and width")
    return first.like(torch.cat([local_operand(one, first) for one in tensors], dim))


def _register_dim(name: str, position: int, default: int | None) -> None:
    # a type behind the dimension belongs to torch's function; the functional one has a stack level there
    function = getattr(torch, name, None) or getattr(torch.nn.functional, name)

    @rule(name)
    def along(input: DistributedMap, *args: Any, **kwargs: Any) -> Any:
        refuse_other_maps(name, *args, *kwargs.values())
        kwargs.pop("_stacklevel", None)
        dim = kwargs["dim"] if "dim" in kwargs else args[position - 1] if len(args) >= position else default
        if dim is None:
            raise UserError(f"{name} of a map needs dim; 1 is its channels")
        if isinstance(dim, int) and dim % 4 > 1 and name in ("chunk", "split", "narrow", "index_select"):
            return along_space(function, input, dim % 4, args, kwargs)
        if not isinstance(dim, int) or dim % 4 > 1:
            raise NeedsWholeError
        if name in ("chunk", "split", "narrow"):
            return input.apply_view(lambda own: function(own, *args, **kwargs))
        return wrap_all(function(input.local, *args, **kwargs), input.like)


for _name, _position, _default in (
    ("softmax", 1, None),
    ("log_softmax", 1, None),
    ("softmin", 1, None),
    ("glu", 1, -1),
    ("normalize", 2, 1),
    ("cumsum", 1, None),
    ("cumprod", 1, None),
    ("chunk", 2, 0),
    ("split", 2, 0),
    ("narrow", 1, None),
    ("index_select", 1, None),
    ("logcumsumexp", 1, None),
):
    _register_dim(_name, _position, _default)


@rule("getitem")
def getitem(input: DistributedMap, index: Any) -> Any:
    """Index or slice images or channels, or slice space; without a dimension the result is an array."""
    indices: tuple[Any, ...] = index if isinstance(index, tuple) else (index,)
    if not isinstance(input, DistributedMap) or any(isinstance(one, DistributedMap) for one in indices):
        raise UserError("a distributed map cannot be an index; use torch.where, or call full_tensor() on it")
    if not all(isinstance(one, slice) or one is Ellipsis for one in indices):
        return array_getitem(input, index)
    if of_space(indices):
        return indexed(input, indices)
    if Ellipsis in indices[:1]:
        indices = (slice(None),) * (5 - len(indices)) + indices[1:]
    cut = [one for one in indices[2:] if one != slice(None)]
    if cut or any(one is None or one is Ellipsis or isinstance(one, int) for one in indices[:2]):
        raise UserError(
            "a distributed map supports slices, and numbers of a row or column, such as x[:, :8, 1:-1] or "
            "x[:, :, 0]; call full_tensor() on it first"
        )
    if all(isinstance(one, slice) for one in indices[:2]):
        view: DistributedMap = input.apply_view(lambda own: own[tuple(indices[:2])])
        return view
    return input.like(input.local[tuple(indices[:2])])


@rule("setitem")
def setitem(input: DistributedMap, index: Any, value: Any) -> None:
    """Assign values to some images or channels, in place."""
    indices = index if isinstance(index, tuple) else (index,)
    if of_space(indices):
        assign(input, indices, value)
        return
    if not all(isinstance(one, slice) or one is Ellipsis for one in indices):
        raise UserError(
            "assignment to a distributed map supports only slices of images and channels, such as x[:, :8] "
            "= 0; use torch.where for others"
        )
    part = getitem(input, index)
    given = value if isinstance(value, Tensor | DistributedMap) else torch.tensor(value, device=input.device)
    check_changeable("setitem", (part, given))
    pointwise(Tensor.copy_, part, given)


@rule("expand_as")
def expand_as(input: Tensor | DistributedMap, other: Tensor | DistributedMap) -> Any:
    """Expand a tensor or map to a map; a map that is expanded to a replicated tensor is gathered."""
    if isinstance(other, DistributedMap):
        return other.like(local_operand(input, other).expand(other.local.shape))
    return input.full_tensor().expand_as(other) if isinstance(input, DistributedMap) else input


@rule("channel_shuffle")
def channel_shuffle(input: DistributedMap, groups: int) -> DistributedMap:
    """Interleave the channels of all groups."""
    images, channels = input.shape[:2]
    parts = input.local.reshape(images, groups, channels // groups, *input.box.shape)
    return input.like(parts.transpose(1, 2).reshape(input.local.shape))


@rule("local_response_norm")
def local_response_norm(input: DistributedMap, *args: Any, **kwargs: Any) -> DistributedMap:
    """Normalise over neighbouring channels at each place."""
    if not input.box.size:
        return input.like(input.local * 1)
    return input.like(torch.nn.functional.local_response_norm(input.local, *args, **kwargs))


@rule("pixel_shuffle")
def pixel_shuffle(input: DistributedMap, upscale_factor: int) -> DistributedMap:
    """Rearrange channels into space."""
    images, channels = input.shape[0], input.shape[1] // upscale_factor**2
    rows, columns = input.box.shape
    apart = input.local.reshape(images, channels, upscale_factor, upscale_factor, rows, columns)
    out = apart.permute(0, 1, 4, 2, 5, 3)
    out = out.reshape(images, channels, rows * upscale_factor, columns * upscale_factor)
    return DistributedMap(out, input.partition.times(upscale_factor, upscale_factor), input.mesh)


@rule("pixel_unshuffle")
def pixel_unshuffle(input: DistributedMap, downscale_factor: int) -> DistributedMap:
    """Rearrange blocks of space into channels."""
    by = downscale_factor
    if input.shape[2] % by or input.shape[3] % by:
        raise UserError(f"pixel_unshuffle by {by} does not divide a map of {tuple(input.shape)}")
    cuts = Partition(*(tuple(-(-at // by) for at in axis) for axis in (input.partition.y, input.partition.x)))
    own = redistribute(input, cuts.times(by, by)).local
    (images, channels), (rows, columns) = input.shape[:2], (extent // by for extent in own.shape[2:])
    apart = own.reshape(images, channels, rows, by, columns, by).permute(0, 1, 3, 5, 2, 4)
    return DistributedMap(apart.reshape(images, channels * by * by, rows, columns), cuts, input.mesh)


@rule("prelu")
def prelu(input: DistributedMap, weight: Tensor) -> DistributedMap:
    """Apply one slope per channel."""
    refuse_other_maps("prelu", weight)
    return input.like(torch.prelu(input.local, all_reduce_backward(weight, input.mesh)))


@rule("dropout")
def dropout(
    input: DistributedMap, p: float = 0.5, training: bool = True, inplace: bool = False, train: bool = True
) -> DistributedMap:
    """Apply this rank's part of the mask that one process would draw."""
    if not training or not train or p == 0:
        return input
    input.mesh.consistency_checks.check_rng(input.device.type)
    order = memory_order(array_of(input))
    ones = input.local.new_ones([input.shape[dim] for dim in order])
    ones = ones.permute([order.index(dim) for dim in range(4)])
    rows, columns = input.box.slices
    own = dropout_mask(ones, p)[:, :, rows, columns].clone()  # frees the rest of the mask
    return _masked(input, input.like(own), inplace)


@rule("dropout2d", "feature_dropout")
def dropout2d(
    input: DistributedMap, p: float = 0.5, training: bool = True, inplace: bool = False, train: bool = True
) -> DistributedMap:
    """Drop whole channels, the same on every rank."""
    if not training or not train or p == 0:
        return input
    input.mesh.consistency_checks.check_rng(input.device.type)
    mask = torch.feature_dropout(input.local.new_ones((*input.shape[:2], 1, 1)), p, True)
    return _masked(input, mask, inplace)


def _masked(x: DistributedMap, mask: Tensor | DistributedMap, inplace: bool) -> DistributedMap:
    out: DistributedMap = pointwise(Tensor.mul_ if inplace else Tensor.mul, x, mask)
    return out
