"""Rules for sums and maxima over space, whose results are replicated on every rank.

Knows: sums and maxima of parts. Does not know: losses, windows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cotswold.errors import UserError
from cotswold.kernels.operands import accumulation_dtype
from cotswold.mesh.maps.array import arranged, array_of
from cotswold.mesh.maps.map import DistributedMap
from cotswold.mesh.ranks.collectives import (
    all_reduce_backward,
    all_reduce_forward,
    all_reduce_max,
    connected_zeros,
)
from cotswold.mesh.ranks.mesh import Mesh
from cotswold.mesh.rules.operands import NeedsWholeError
from cotswold.mesh.rules.pointwise import pointwise
from cotswold.mesh.rules.registry import rule

Dims = int | Sequence[int] | None


def _dims(dim: Dims) -> tuple[int, ...]:
    wanted = range(4) if dim is None or dim == [] or dim == () else (dim,) if isinstance(dim, int) else dim
    return tuple(sorted(one % 4 for one in wanted))


def _add_up(kept: Tensor, x: DistributedMap, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    """Add up the ranks' partial sums, which have size 1 in summed dimensions."""
    box, plane = x.box, x.partition.shape
    sides = [0, 0, 0, 0]
    for dim in (2, 3):
        if dim not in dims:
            at = dim - 2
            sides[2 - 2 * at : 4 - 2 * at] = [box.start[at], plane[at] - box.stop[at]]
    total = all_reduce_forward(F.pad(kept, sides) if any(sides) else kept, x.mesh)
    return total if keepdim else total.squeeze(dims)


@rule("sum")
def sum(
    input: DistributedMap, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    """Sum; replicated if over space, still a map if over channels with ``keepdim``."""
    of = dtype or (input.dtype if input.dtype.is_floating_point else torch.int64)
    return _accumulated_sum(input, dim, keepdim, accumulation_dtype(of)).to(of)


def _accumulated_sum(input: DistributedMap, dim: Dims, keepdim: bool, dtype: torch.dtype) -> Any:
    dims = _dims(dim)
    kept = input.local.sum(dims, keepdim=True, dtype=dtype)
    if set(dims) & {2, 3}:
        return _add_up(kept, input, dims, keepdim)
    layout = array_of(input).axes
    return arranged(kept if keepdim else kept.squeeze(dims), layout.reduced(dims, keepdim), input.mesh)


def _accumulated_mean(input: DistributedMap, dim: Dims, keepdim: bool, dtype: torch.dtype) -> Any:
    return _accumulated_sum(input, dim, keepdim, dtype) / math.prod(input.shape[one] for one in _dims(dim))


@rule("mean")
def mean(
    input: DistributedMap, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    """Mean, as ``sum``."""
    of = dtype or input.dtype
    if not of.is_floating_point:
        raise UserError(f"mean of {of} needs a floating-point dtype")
    return _accumulated_mean(input, dim, keepdim, accumulation_dtype(of)).to(of)


def _variance(input: DistributedMap, dim: Dims, unbiased: bool | None, keepdim: bool, correction: Any) -> Any:
    """Variance in two passes, in the accumulation type."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    taken = correction if correction is not None else 1 if unbiased is None else int(unbiased)
    dims, wide = _dims(dim), accumulation_dtype(input.dtype)
    away = input.to(wide) - _accumulated_mean(input, dims, True, wide)
    count = math.prod(input.shape[one] for one in dims) - taken
    return _accumulated_sum(away * away, dims, keepdim, wide) / count


@rule("var")
def var(
    input: DistributedMap,
    dim: Dims = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: Any = None,
) -> Any:
    """Variance, in two passes."""
    return _variance(input, dim, unbiased, keepdim, correction).to(input.dtype)


@rule("std")
def std(
    input: DistributedMap,
    dim: Dims = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: Any = None,
) -> Any:
    """Square root of the variance."""
    return _variance(input, dim, unbiased, keepdim, correction).sqrt().to(input.dtype)


def _least(dtype: torch.dtype) -> float:
    """Identity element of the maximum."""
    return -torch.inf if dtype.is_floating_point else torch.iinfo(dtype).min


class _Largest(torch.autograd.Function):
    """Maximum of the parts; equal maxima share the gradient, as in torch.amax."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, mesh: Mesh, dims: tuple[int, ...]) -> Tensor:
        shape = [1 if dim in dims else extent for dim, extent in enumerate(part.shape)]
        own = part.amax(dims, keepdim=True) if part.numel() else part.new_full(shape, _least(part.dtype))
        whole = all_reduce_max(own, mesh)
        hits = part == whole
        ctx.mesh = mesh
        # short floats cannot represent large counts
        counts = hits.sum(
            dims, keepdim=True, dtype=torch.float64 if part.dtype == torch.float64 else torch.float32
        )
        ctx.save_for_backward(hits, mesh.sum_in_place(counts))
        return whole

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        hits, count = ctx.saved_tensors
        return hits * all_reduce_backward((grad / count).to(grad.dtype), ctx.mesh), None, None


def largest(part: Tensor, mesh: Mesh, dims: tuple[int, ...]) -> Tensor:
    """Return the maximum of the parts of all ranks over dimensions, which keep extent 1; replicated."""
    out: Tensor = _Largest.apply(part, mesh, dims)  # type: ignore[no-untyped-call]  # torch's
    return out


@rule("amax")
def amax(input: DistributedMap, dim: Dims = None, keepdim: bool = False) -> Any:
    """Maximum over both spatial axes, or over channels with ``keepdim``."""
    dims = _dims(dim)
    if {2, 3} <= set(dims):
        out = largest(input.local, input.mesh, dims)
        return out if keepdim else out.squeeze(dims)
    if set(dims) & {2, 3}:
        raise NeedsWholeError
    own = input.local.amax(dims, keepdim)
    return arranged(own, array_of(input).axes.reduced(dims, keepdim), input.mesh)


@rule("amin")
def amin(input: DistributedMap, dim: Dims = None, keepdim: bool = False) -> Any:
    """Minimum, as ``amax``."""
    negative: DistributedMap = pointwise(torch.neg, input)
    return -amax(negative, dim, keepdim)


def _extreme(name: str, over_all: Callable[[DistributedMap], Any]) -> None:
    function = getattr(torch, name)

    @rule(name)
    def extreme(input: DistributedMap, dim: Any = None, keepdim: bool = False) -> Any:
        if dim is None:
            return over_all(input)
        if isinstance(dim, DistributedMap):
            return pointwise(function, input, dim)
        if dim % 4 in (2, 3):
            raise NeedsWholeError
        found = function(input.local, dim, keepdim)
        layout = array_of(input).axes.reduced((dim % 4,), keepdim)
        return type(found)([arranged(one, layout, input.mesh) for one in found])


_extreme("max", amax)
_extreme("min", amin)


def _cells(extent: int, count: int) -> list[tuple[int, int]]:
    return [(at * extent // count, -(-(at + 1) * extent // count)) for at in range(count)]


def _adaptive(x: DistributedMap, output_size: Any) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    wanted = output_size if isinstance(output_size, int) else tuple(output_size)
    counts = (wanted, wanted) if isinstance(wanted, int) else wanted
    rows, columns = (extent if n is None else n for extent, n in zip(x.partition.shape, counts, strict=True))
    return _cells(x.shape[2], rows), _cells(x.shape[3], columns)


@rule("adaptive_avg_pool2d")
def adaptive_avg_pool2d(input: DistributedMap, output_size: Any) -> Tensor:
    """Average over cells of the plane, replicated on every rank."""

    def weights(cells: list[tuple[int, int]], start: int, stop: int) -> Tensor:
        out = input.local.new_zeros((len(cells), stop - start), dtype=wide)
        for row, (first, last) in zip(out, cells, strict=True):
            row[max(first - start, 0) : max(last - start, 0)] = 1 / (last - first)
        return out

    wide = accumulation_dtype(input.dtype)
    rows, columns = _adaptive(input, output_size)
    (top, left), (bottom, right) = input.box.start, input.box.stop
    along_y, along_x = weights(rows, top, bottom), weights(columns, left, right)
    parts = torch.einsum("yi,ncij,xj->ncyx", along_y, input.local.to(wide), along_x)
    return all_reduce_forward(parts, input.mesh).to(input.dtype)


class _LargestOfCells(torch.autograd.Function):
    """Maximum of each cell; the first of equal maxima in the map gets the gradient."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, like: tuple[DistributedMap], rows: Any, columns: Any) -> Tensor:
        (x,) = like
        (top, left), (bottom, right) = x.box.start, x.box.stop
        shape = (*part.shape[:2], len(rows), len(columns))
        best = part.new_full(shape, _least(part.dtype))
        place = torch.full(shape, x.shape[2] * x.shape[3], dtype=torch.int64, device=part.device)
        for i, (y0, y1) in enumerate(rows):
            for j, (x0, x1) in enumerate(columns):
                y0_, y1_, x0_, x1_ = max(y0, top), min(y1, bottom), max(x0, left), min(x1, right)
                if y0_ < y1_ and x0_ < x1_:
                    cell = part[:, :, y0_ - top : y1_ - top, x0_ - left : x1_ - left]
                    value, at = F.adaptive_max_pool2d(cell, 1, return_indices=True)
                    best[:, :, i, j] = value[:, :, 0, 0]
                    y, across = at // (x1_ - x0_), at % (x1_ - x0_)
                    place[:, :, i, j] = ((y + y0_) * x.shape[3] + across + x0_)[:, :, 0, 0]
        whole = all_reduce_max(best, x.mesh)
        place[(best != whole) & ~(best.isnan() & whole.isnan())] = x.shape[2] * x.shape[3]
        first = x.mesh.largest_in_place(-place).neg_()
        y, across = place // x.shape[3] - top, place % x.shape[3] - left
        own = (place == first) & (place < x.shape[2] * x.shape[3])
        ctx.save_for_backward(own, torch.where(own, y * (right - left) + across, 0))
        ctx.mesh, ctx.part_shape = x.mesh, part.shape
        return whole

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        own, place = ctx.saved_tensors
        images, channels, height, width = ctx.part_shape
        shares = (all_reduce_backward(grad, ctx.mesh) * own).flatten(2)
        if height * width == 0:
            return connected_zeros(ctx.part_shape, shares), None, None, None
        out = grad.new_zeros((images, channels, height * width)).scatter_add(2, place.flatten(2), shares)
        return out.view(ctx.part_shape), None, None, None


@rule("adaptive_max_pool2d")
def adaptive_max_pool2d(input: DistributedMap, output_size: Any, return_indices: bool = False) -> Tensor:
    """Maximum over cells of the plane, replicated on every rank."""
    if return_indices:
        raise UserError("adaptive_max_pool2d of a distributed map does not support return_indices")
    rows, columns = _adaptive(input, output_size)
    out: Tensor = _LargestOfCells.apply(input.local, (input,), rows, columns)  # type: ignore[no-untyped-call]  # torch's
    return out
