"""Operands of rules for distributed arrays: parts of one layout, views, and the gathering of wholes.

Knows: broadcasting, redistribution, what shares memory, notices. Does not know: functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from cotswold.errors import UserError
from cotswold.geometry import Partition
from cotswold.mesh.maps.array import DistributedArray, arranged, array_of, own_part
from cotswold.mesh.maps.distributed_tensor import (
    DistributedTensor,
    base_name,
    in_place,
    shares_memory,
    version_of,
)
from cotswold.mesh.maps.features import DRAWING
from cotswold.mesh.maps.layout import ROWS, Axis, Dim, Layout, is_cut, plain
from cotswold.mesh.maps.map import DistributedMap
from cotswold.mesh.modules.parameters import ShardedParameter
from cotswold.mesh.ranks.collectives import all_reduce_backward
from cotswold.mesh.ranks.mesh import Mesh
from cotswold.mesh.ranks.notices import notice
from cotswold.mesh.rules.operands import NeedsWholeError, redistribute


def needs_whole(condition: bool) -> None:
    """Raise NeedsWholeError if a condition holds."""
    if condition:
        raise NeedsWholeError


def arrays_in(values: Any) -> Iterator[DistributedArray]:
    """Return the maps and arrays among some values, as arrays."""
    for one in tree_leaves(values):
        if isinstance(one, DistributedArray | DistributedMap):
            yield array_of(one)


def dim_of(x: DistributedArray, dim: Any) -> int:
    """Return a dimension counted from 0; raises IndexError as torch does."""
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise NeedsWholeError
    count = x.dim()
    if not -count <= dim < count:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-count}, {count - 1}], but got {dim})"
        )
    return dim % count


def whole_dim(x: DistributedArray, dim: Any) -> int:
    """Return a dimension of which every rank has all; raises NeedsWholeError for others."""
    at = dim_of(x, dim)
    needs_whole(at in x.axes.cut_dims)
    return at


def moved(x: DistributedArray, plane: Partition) -> DistributedArray:
    """Return an array with other cuts of its plane, by one exchange."""
    layout, mesh = x.axes, x.mesh
    if layout.plane == plane:
        return x
    needs_whole(layout.plane is None or layout.plane.shape != plane.shape)
    assert layout.plane is not None
    found, after = layout.factors, layout.with_plane(plane)
    cut = sorted((at for at, one in enumerate(found) if one.is_cut), key=lambda at: _side(found[at]))
    order = [*(at for at in range(len(found)) if at not in cut), *cut]
    apart = x.local.reshape([len(one.part(layout.grid, mesh.rank)) for one in found])
    local = apart.permute(order)
    rest = local.shape[:-2]
    folded = DistributedMap(local.reshape(1, rest.numel(), *local.shape[-2:]), layout.plane, mesh)
    part = redistribute(folded, plane).local
    back = sorted(range(len(order)), key=lambda at: order[at])
    out = in_order_of(apart, part.reshape(*rest, *part.shape[-2:]).permute(back))
    return DistributedArray(out.reshape(after.local_shape(mesh.rank)), after, mesh)


def in_order_of(like: Tensor, x: Tensor) -> Tensor:
    """Return values in the order in memory of another tensor."""
    return in_order(x, _order(like))


def in_order(x: Tensor, order: list[int]) -> Tensor:
    """Return values in an order in memory: dimensions from the outermost to the innermost."""
    return x.permute(order).contiguous().permute([order.index(dim) for dim in range(x.dim())])


def _order(x: Tensor) -> list[int]:
    # of two dimensions with one stride, that of extent 1 is the inner one
    return sorted(range(x.dim()), key=lambda dim: (-x.stride()[dim], x.shape[dim] == 1))


def memory_order(x: DistributedArray) -> list[int]:
    """Return the dimensions from the outermost to the innermost in memory, in which masks are drawn.

    The strides of a single row, column or window do not tell its place; if a rank has one, all take the order
    of the rank with the most.
    """
    own = _order(x.local)
    cut = [one for one in x.axes.factors if one.is_cut and one.extent > 1]
    least = [min((len(one.part(x.axes.grid, rank)) for one in cut), default=2) for rank in range(x.mesh.size)]
    if min(least) > 1 or x.mesh.size == 1:
        return own
    told = x.mesh.gather(torch.tensor(own, device="cpu"))
    found: list[int] = told[least.index(max(least))].tolist()
    return found


def _side(factor: Any) -> int:
    return ROWS if not isinstance(factor, Axis) or factor.side is None else factor.side


def local_operand(value: Any, like: Layout, mesh: Mesh) -> Any:
    """Return this rank's part of an operand that is broadcast with an array of layout ``like``."""
    if isinstance(value, DistributedArray | DistributedMap):
        x = array_of(value)
        plane, wanted = x.axes.plane, like.plane
        is_alike = plane is not None and wanted is not None and plane.shape == wanted.shape
        if is_alike and plane != wanted and wanted and _fits(x.axes.with_plane(wanted), like):
            x = moved(x, wanted)
        if _fits(x.axes, like):
            return x.local
        value = x.full_tensor()
    elif isinstance(value, DistributedTensor):
        value = value.full_tensor()
    if not isinstance(value, Tensor):
        return value
    if value.dim() == 0:
        return all_reduce_backward(value, mesh)
    for back in range(1, min(value.dim(), len(like.dims)) + 1):
        # otherwise the values would be broadcast along a divided dimension of extent 1
        needs_whole(is_cut(like.dims[-back]) and value.shape[-back] not in (1, like.shape[-back]))
    return own_part(value, like, mesh)


def _fits(layout: Layout, like: Layout) -> bool:
    """True if the divided dimensions of a layout are those of another, counted from the last."""
    mine = {at - len(layout.dims): layout.dims[at] for at in layout.cut_dims}
    return mine == {at - len(like.dims): like.dims[at] for at in like.cut_dims}


def broadcast_layout(first: DistributedArray, operands: list[Any]) -> Layout:
    """Return the layout of an array that is broadcast with other operands."""
    dims: list[Dim] = []
    shapes = [tuple(one.shape) for one in operands if isinstance(one, Tensor)]
    for back in range(1, max(map(len, shapes)) + 1):
        mine = first.axes.dims[-back] if back <= first.dim() else ()
        extent = max(shape[-back] for shape in shapes if len(shape) >= back)
        empty = any(shape[-back] == 0 for shape in shapes if len(shape) >= back)
        dims.append(mine if mine else plain(0 if empty else extent))
    return first.axes.with_dims(reversed(dims))


def viewed(x: DistributedArray, local: Tensor, layout: Layout) -> Any:
    """Return a view of an array; changes in place reach the array, or are detected."""
    if x.is_copy and layout.is_map:
        return copied(x, local.clone(), layout)
    out = arranged(local, layout, x.mesh)
    out.copies = x.copies
    if x.is_copy:
        out.is_copy = True
    return out


def copied(x: DistributedArray, local: Tensor, layout: Layout) -> Any:
    """Return what torch would make a view, but here may be a copy: changes in place of either are refused."""
    out = arranged(local, layout, x.mesh)
    if x.mesh.size > 1:
        x.copies.add_distributed(out, local)
    return out


def copied_whole(x: DistributedArray, whole: Tensor) -> Tensor:
    """Return a replicated copy that torch would make a view: changes in place of either are refused."""
    if x.mesh.size > 1:
        x.copies.add(whole, version_of(whole))
    return whole


def notice_whole(what: str, x: DistributedMap | DistributedArray, divided: bool = False) -> None:
    """Warn once per layer that every rank gets all of a map or an array.

    Args:
        what: The function that needs it.
        x: The map or the array.
        divided: True if the result is distributed again.
    """
    x.mesh.gathered = x.mesh.gathered or not divided
    kind = "a map" if isinstance(x, DistributedMap) else "an array"
    until = (
        "for this function"
        if divided
        else "and computes everything up to the next convolution; docs/mesh.md lists the functions that "
        "compute on parts"
    )
    notice(
        x.mesh,
        "whole",
        f"{what} in {{layer}} gathers {kind} {tuple(x.shape)}: every rank holds all of it, {until}",
    )


def warn_operand(name: str, x: DistributedMap | DistributedArray) -> None:
    """Warn once per layer that a product gathers one operand."""
    x.mesh.gathered = True
    notice(
        x.mesh,
        "operand",
        f"{name} in {{layer}} gathers an operand {tuple(x.shape)}: every rank computes its own part of the "
        "result with all of that operand, the keys and values of all tokens as a rule",
    )


def refusal(name: str) -> UserError:
    """Return the error of a function that cannot be computed on distributed maps and arrays."""
    return UserError(
        f"{name} cannot be computed on a distributed map; call full_tensor() on the map first, or write the "
        "layer as a cotswold.mesh.SpatialLayer"
    )


def gathered(
    function: Callable[..., Any],
    args: Any,
    kwargs: Mapping[str, Any],
    *,
    name: str = "",
    silent: bool = False,
    divided: bool = False,
) -> Any:
    """Call a function with whole maps and arrays on every rank; a notice names the layer once.

    Args:
        function: The function of torch.
        args: Positional arguments, with maps and arrays.
        kwargs: Other arguments.
        name: The function's name [its own].
        silent: Give no notice.
        divided: The caller distributes the results again.
    """
    name = name or base_name(function)
    if in_place(function) or kwargs.get("inplace"):
        raise refusal(f"{name} in place")
    given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, DistributedTensor)]
    distributed = [one for one in given if isinstance(one, DistributedArray | DistributedMap)]
    first = max(distributed, key=lambda one: one.numel())
    if name in DRAWING:
        first.mesh.consistency_checks.check_rng(first.device.type)
    wholes = {id(one): one.full_tensor() for one in given}
    if name in DRAWING:
        for one in distributed:
            wholes[id(one)] = in_order(wholes[id(one)], memory_order(array_of(one)))
    args, kwargs = tree_map(lambda one: wholes.get(id(one), one), (args, dict(kwargs)))
    out = function(*args, **kwargs)
    results = [one for one in tree_leaves(out) if isinstance(one, Tensor)]
    if divided or (not silent and any(one.dim() > 2 for one in results)):
        notice_whole(name, first, divided)
    else:
        first.mesh.gathered = True
    for source in distributed:
        whole = wholes[id(source)]
        is_copy = first.mesh.size > 1 and getattr(source, "_whole", None) is None
        if is_copy and any(shares_memory(whole, one) for one in results):
            source.copies.add(whole, version_of(whole))
    return out


def whole_parameters(args: Any, kwargs: Any) -> Any:
    """Replace sharded parameters by gathered ones."""
    return tree_map(
        lambda one: one.full_tensor() if isinstance(one, ShardedParameter) else one, (args, dict(kwargs))
    )


def entered(mesh: Mesh, *learnt: Tensor | None) -> list[Any]:
    """Return replicated operands for use with parts, parameters as a rule."""
    return [None if one is None else all_reduce_backward(one, mesh) for one in learnt]
