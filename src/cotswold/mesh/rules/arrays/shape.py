"""Rules for views, reshapes and indices of distributed arrays.

Knows: which dimensions are divided, tokens of the first rank. Does not know: sums, products.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor

from cotswold.errors import UserError
from cotswold.mesh.maps.array import DistributedArray, arranged, array_of
from cotswold.mesh.maps.layout import Axis, Dim, Tokens, merged, plain
from cotswold.mesh.maps.map import DistributedMap
from cotswold.mesh.ranks.collectives import all_reduce_forward, connected_zeros
from cotswold.mesh.rules.arrays.operands import (
    copied,
    copied_whole,
    dim_of,
    gathered,
    moved,
    needs_whole,
    viewed,
    whole_dim,
)
from cotswold.mesh.rules.arrays.pointwise import pointwise
from cotswold.mesh.rules.operands import NeedsWholeError
from cotswold.mesh.rules.registry import array_rule, find_rule

Distributed = DistributedMap | DistributedArray


def _numbers(given: tuple[Any, ...]) -> list[Any]:
    """Numbers that are given one by one, or as one sequence."""
    return list(given[0]) if len(given) == 1 and isinstance(given[0], tuple | list) else list(given)


@array_rule("permute")
def permute(input: Distributed, *dims: Any, **kwargs: Any) -> Any:
    """Reorder dimensions."""
    needs_whole(bool(set(kwargs) - {"dims"}))
    x = array_of(input)
    order = [dim_of(x, one) for one in _numbers((kwargs["dims"],) if "dims" in kwargs else dims)]
    return viewed(x, x.local.permute(order), x.axes.with_dims(x.axes.dims[at] for at in order))


@array_rule("transpose", "swapaxes", "swapdims")
def transpose(input: Distributed, dim0: Any, dim1: Any) -> Any:
    """Exchange two dimensions."""
    x = array_of(input)
    order = list(range(x.dim()))
    a, b = dim_of(x, dim0), dim_of(x, dim1)
    order[a], order[b] = b, a
    return permute(x, order)


@array_rule("mT", "mH")
def matrix_transpose(input: Distributed) -> Any:
    """Exchange the last two dimensions."""
    needs_whole(input.dtype.is_complex)
    return transpose(input, -2, -1)


@array_rule("t", "T", "H")
def reverse(input: Distributed) -> Any:
    """Exchange both dimensions of a matrix."""
    needs_whole(input.dim() != 2 or input.dtype.is_complex)
    return transpose(input, 0, 1)


@array_rule("movedim", "moveaxis")
def movedim(input: Distributed, source: Any, destination: Any) -> Any:
    """Move dimensions to other places."""
    x = array_of(input)
    order = [at for at in range(x.dim()) if at != dim_of(x, source)]
    order.insert(dim_of(x, destination), dim_of(x, source))
    return permute(x, order)


@array_rule("unsqueeze")
def unsqueeze(input: Distributed, dim: int) -> Any:
    """Insert a dimension of extent 1."""
    x = array_of(input)
    at = dim + x.dim() + 1 if dim < 0 else dim
    dims = list(x.axes.dims)
    local = x.local.unsqueeze(dim)
    dims.insert(at, ())
    return viewed(x, local, x.axes.with_dims(dims))


@array_rule("squeeze")
def squeeze(input: Distributed, dim: Any = None) -> Any:
    """Remove dimensions of extent 1."""
    x = array_of(input)
    wanted = range(x.dim()) if dim is None else (dim,) if isinstance(dim, int) else dim
    removed = {at for at in (dim_of(x, one) for one in wanted) if x.shape[at] == 1}
    needs_whole(bool(removed & x.axes.cut_dims))
    dims = [one for at, one in enumerate(x.axes.dims) if at not in removed]
    return viewed(x, x.local.squeeze(tuple(removed)) if removed else x.local, x.axes.with_dims(dims))


@array_rule("select")
def select(input: Distributed, dim: int, index: int) -> Any:
    """Take one index of a dimension."""
    x = array_of(input)
    return getitem(x, (*[slice(None)] * dim_of(x, dim), index))


@array_rule("unbind")
def unbind(input: Distributed, dim: int = 0) -> Any:
    """Return every index of a dimension."""
    x = array_of(input)
    at = whole_dim(x, dim)
    return tuple(select(x, at, index) for index in range(x.shape[at]))


@array_rule("narrow")
def narrow(input: Distributed, dim: int, start: Any, length: int) -> Any:
    """Take a range of a dimension."""
    x = array_of(input)
    at = dim_of(x, dim)
    needs_whole(not isinstance(start, int))
    start = start + x.shape[at] if start < 0 else start
    return getitem(x, (*[slice(None)] * at, slice(start, start + length)))


def _register_parts(name: str) -> None:
    function = getattr(torch, name)

    @array_rule(name)
    def parts(input: Distributed, sizes: Any, dim: int = 0) -> Any:
        x = array_of(input)
        at = dim_of(x, dim)
        counts = [one.shape[0] for one in function(torch.empty(x.shape[at], device="meta"), sizes)]
        starts = [sum(counts[:number]) for number in range(len(counts))]
        return tuple(narrow(x, at, start, count) for start, count in zip(starts, counts, strict=True))


for _name in ("chunk", "split", "tensor_split"):
    _register_parts(_name)


@array_rule("view", "reshape")
def reshape(input: Distributed, *shape: Any, **kwargs: Any) -> Any:
    """Return another shape; divided dimensions may be split and merged, which may move their cuts."""
    given = [kwargs["shape"]] if "shape" in kwargs else [kwargs["size"]] if "size" in kwargs else list(shape)
    wanted = _numbers(tuple(given))
    needs_whole(not wanted or not all(isinstance(one, int) for one in wanted))
    if -1 in wanted:
        known = prod(one for one in wanted if one != -1)
        needs_whole(wanted.count(-1) > 1 or not known or input.numel() % known != 0)
        wanted[wanted.index(-1)] = input.numel() // known
    return _reshaped(input, wanted, "view" if not kwargs else "reshape")


def _reshaped(input: Distributed, shape: list[int], name: str) -> Any:
    x = array_of(input)
    needs_whole(prod(shape) != x.numel())
    if list(x.shape) == shape:
        return viewed(x, x.local.view(x.local.shape), x.axes)
    found = x.axes.reshaped(shape)
    if len(shape) < 2 or (len(shape) == 2 and (found is None or 0 not in found[1].cut_dims)):
        # features have no spatial dimensions, and are gathered on purpose
        return gathered(torch.reshape, (input, tuple(shape)), {}, silent=True)
    needs_whole(found is None)
    assert found is not None
    aligned, out = found
    source = x if aligned.plane is None else moved(x, aligned.plane)
    return copied(x, source.local.reshape(out.local_shape(x.mesh.rank)), out)


@array_rule("view_as", "reshape_as")
def view_as(input: Distributed, other: Tensor) -> Any:
    """Return the shape of another tensor."""
    return reshape(input, tuple(other.shape))


@array_rule("flatten")
def flatten(input: Distributed, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Merge a range of dimensions."""
    x = array_of(input)
    first, last = dim_of(x, start_dim), dim_of(x, end_dim)
    needs_whole(first > last)
    shape = tuple(x.shape)
    return _reshaped(input, [*shape[:first], prod(shape[first : last + 1]), *shape[last + 1 :]], "flatten")


@array_rule("unflatten")
def unflatten(input: Distributed, dim: int, sizes: Any) -> Any:
    """Split a dimension into several."""
    x = array_of(input)
    at, shape = dim_of(x, dim), tuple(x.shape)
    wanted = list(sizes)
    if -1 in wanted:
        wanted[wanted.index(-1)] = shape[at] // prod(one for one in wanted if one != -1)
    return _reshaped(input, [*shape[:at], *wanted, *shape[at + 1 :]], "unflatten")


@array_rule("expand")
def expand(input: Distributed, *sizes: Any) -> Any:
    """Repeat dimensions of extent 1, without a copy."""
    x = array_of(input)
    wanted = _numbers(sizes)
    new = len(wanted) - x.dim()
    needs_whole(new < 0)
    dims: list[Dim] = [plain(one) for one in wanted[:new]]
    local = list(wanted[:new])
    for at, extent in enumerate(wanted[new:]):
        same = extent in (-1, x.shape[at])
        needs_whole(not same and at in x.axes.cut_dims)
        dims.append(x.axes.dims[at] if same else plain(extent))
        local.append(x.local.shape[at] if same else extent)
    return viewed(x, x.local.expand(local), x.axes.with_dims(dims))


@array_rule("expand_as")
def expand_as(input: Any, other: Tensor) -> Any:
    """Expand a tensor or array to the shape of another."""
    shape = tuple(other.shape)
    return expand(input, *shape) if isinstance(input, Distributed) else input.expand(shape)


@array_rule("repeat")
def repeat(input: Distributed, *repeats: Any) -> Any:
    """Repeat dimensions that are not divided."""
    x = array_of(input)
    counts = _numbers(repeats)
    new = len(counts) - x.dim()
    needs_whole(new < 0 or any(counts[at + new] != 1 for at in x.axes.cut_dims))
    old = [merged((*plain(n), *dim)) for n, dim in zip(counts[new:], x.axes.dims, strict=True)]
    return arranged(x.local.repeat(counts), x.axes.with_dims((*map(plain, counts[:new]), *old)), x.mesh)


@array_rule("getitem")
def getitem(input: Distributed, index: Any) -> Any:
    """Index by numbers, slices, None and ``...``; slices of divided dimensions only as far as they are whole.

    A list or tensor of indices may stand for one dimension.
    """
    x = array_of(input)
    indices = list(index) if isinstance(index, tuple) else [index]
    taken = sum(one is not None and one is not Ellipsis for one in indices)
    needs_whole(taken > x.dim())
    rest = [slice(None)] * (x.dim() - taken)
    at = next((at for at, one in enumerate(indices) if one is Ellipsis), len(indices))
    indices[at : at + 1] = rest
    needs_whole(any(one is Ellipsis for one in indices))
    lists = [one for one in indices if isinstance(one, list | Tensor)]
    needs_whole(len(lists) > 1)
    out: Any = x
    dim = 0
    for one in indices:
        if one is None:
            out = out.unsqueeze(dim)
            dim += 1
        elif isinstance(one, int) and not isinstance(one, bool):
            out = _item(out, dim, one)
        elif isinstance(one, slice):
            out = _range(out, dim, one)
            dim += 1
        else:
            out = index_select(out, dim, one)
            dim += 1
    return out


def _item(x: Any, dim: int, index: int) -> Any:
    if not isinstance(x, Distributed):
        return x.select(dim, index)
    x = array_of(x)
    if dim not in x.axes.cut_dims:
        dims = [one for at, one in enumerate(x.axes.dims) if at != dim]
        return viewed(x, x.local.select(dim, index), x.axes.with_dims(dims))
    extent = x.shape[dim]
    needs_whole(not -extent <= index < extent)
    index %= extent
    out = _range(x, dim, slice(index, index + 1))
    needs_whole(isinstance(out, Distributed))
    return out.select(dim, 0)


def _range(x: Any, dim: int, index: slice) -> Any:
    if not isinstance(x, Distributed):
        return x[(*[slice(None)] * dim, index)]
    x = array_of(x)
    needs_whole(any(not isinstance(one, int | None) for one in (index.start, index.stop, index.step)))
    start, stop, step = index.indices(x.shape[dim])
    if (start, stop, step) == (0, x.shape[dim], 1):
        return viewed(x, x.local, x.axes)
    if dim not in x.axes.cut_dims:
        local = x.local[(*[slice(None)] * dim, index)]
        return viewed(x, local, x.axes.with_dim(dim, plain(local.shape[dim])))
    (tokens, *more) = x.axes.dims[dim]
    if isinstance(tokens, Tokens) and not more:
        return _some_tokens(x, dim, tokens, (start, stop, step))
    return _in_space(x, dim, index)


def _some_tokens(x: DistributedArray, dim: int, tokens: Tokens, index: tuple[int, int, int]) -> Any:
    """Return the pixels with some of the tokens around them, or some of these, which every rank gets."""
    start, stop, step = index
    first, last = tokens.before, tokens.before + tokens.pixels
    needs_whole(step != 1 or stop <= start)
    if start <= first and stop >= last:
        before, after = first - start, stop - last
        local = x.local
        if x.mesh.rank == 0:
            local = local.narrow(dim, start, local.shape[dim] - start - (tokens.extent - stop))
        rest: Dim = (Tokens(before, tokens.plane, after),) if before or after else pixels_of(tokens)
        return viewed(x, local, x.axes.with_dim(dim, rest))
    needs_whole(not (stop <= first or start >= last))
    shape = [*x.shape[:dim], stop - start, *x.shape[dim + 1 :]]
    if x.mesh.rank == 0:
        skipped = start if stop <= first else start - tokens.extent + x.local.shape[dim]
        part = x.local.narrow(dim, skipped, stop - start)
    else:
        part = connected_zeros(shape, x.local)
    return copied_whole(x, all_reduce_forward(part, x.mesh))


def pixels_of(tokens: Tokens) -> Dim:
    """Return the dimension of the pixels of tokens."""
    (height, width), plane = tokens.plane.shape, tokens.plane
    return Axis(height, 0, plane.y), Axis(width, 1, plane.x)


def _in_space(x: DistributedArray, dim: int, index: slice) -> Any:
    """Cut rows or columns out by the rule of maps."""
    mapped, back = as_map(x)
    (axis,) = x.axes.dims[dim]
    rule = find_rule("getitem")
    assert rule is not None and isinstance(axis, Axis) and axis.side is not None
    try:
        out = back(rule(mapped, (*[slice(None)] * (2 + axis.side), index)))
    except UserError:  # before any message
        raise NeedsWholeError from None
    x.copies.add_distributed(out, out.local)
    return out


def as_map(x: DistributedArray) -> tuple[DistributedMap, Callable[[Any], Any]]:
    """Return an array as a map, its other dimensions as channels, and the function that turns it back.

    Raises NeedsWholeError unless rows and columns are dimensions of their own.
    """
    dims = x.axes.dims
    sides = {dim[0].side: at for at, dim in enumerate(dims) if len(dim) == 1 and isinstance(dim[0], Axis)}
    needs_whole(not {0, 1} <= set(sides))
    others = [at for at in range(len(dims)) if at not in (sides[0], sides[1])]
    order = [*others, sides[0], sides[1]]
    local = x.local.permute(order)
    rest = local.shape[:-2]
    assert x.axes.plane is not None
    folded = local if len(rest) == 2 else local.reshape(1, rest.numel(), *local.shape[-2:])
    mapped = DistributedMap(folded, x.axes.plane, x.mesh)

    def back(out: DistributedMap) -> Any:
        layout = x.axes.with_dims(
            (Axis(out.shape[2], 0, out.partition.y),)
            if at == sides[0]
            else (Axis(out.shape[3], 1, out.partition.x),)
            if at == sides[1]
            else dim
            for at, dim in enumerate(dims)
        )
        found = out.local.reshape(*rest, *out.local.shape[2:])
        return arranged(found.permute([order.index(at) for at in range(len(order))]), layout, x.mesh)

    return mapped, back


@array_rule("index_select")
def index_select(input: Distributed, dim: int, index: Any) -> Any:
    """Take a list of indices of a dimension."""
    x = array_of(input)
    at = whole_dim(x, dim)
    places = torch.as_tensor(index, device=x.device)
    needs_whole(places.dim() != 1 or places.dtype not in (torch.int64, torch.int32))
    extent = x.shape[at]
    local = x.local.index_select(at, torch.where(places < 0, places + extent, places))
    return arranged(local, x.axes.with_dim(at, plain(local.shape[at])), x.mesh)


@array_rule("setitem")
def setitem(input: Distributed, index: Any, value: Any) -> None:
    """Assign to dimensions of which every rank has all, in place."""
    x = array_of(input)
    part = getitem(x, index)
    given = index if isinstance(index, tuple) else (index,)
    needs_whole(any(isinstance(one, list | Tensor) for one in given))
    # a range of a divided dimension is a copy, with other boundaries
    needs_whole(not isinstance(part, Distributed) or x.is_copy)
    needs_whole(x.axes.plane not in (None, array_of(part).axes.plane))
    values = value if isinstance(value, Tensor) else torch.tensor(value, device=x.device)
    pointwise(Tensor.copy_, (part, values), {})
