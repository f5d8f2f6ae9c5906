"""Rules for sums, maxima, norms and their like over dimensions of distributed arrays.

Knows: reductions of whole dimensions, and over all divided ones by a message. Does not know: products.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import torch
from torch import Tensor

from cotswold.kernels.operands import accumulation_dtype
from cotswold.mesh.maps.array import DistributedArray, arranged, array_of
from cotswold.mesh.maps.layout import Layout
from cotswold.mesh.ranks.collectives import all_gather, all_reduce_forward, connected_zeros
from cotswold.mesh.rules.arrays.operands import dim_of, needs_whole
from cotswold.mesh.rules.arrays.pointwise import pointwise
from cotswold.mesh.rules.arrays.shape import Distributed
from cotswold.mesh.rules.registry import array_rule
from cotswold.mesh.rules.sums import largest


def dims_of(x: DistributedArray, dim: Any) -> tuple[int, ...]:
    """Return dimensions, counted from 0 and rising; all for None."""
    if dim is None or (isinstance(dim, tuple | list) and not dim):
        return tuple(range(x.dim()))
    wanted: Iterable[Any] = dim if isinstance(dim, tuple | list) else (dim,)
    return tuple(sorted(dim_of(x, one) for one in wanted))


def _is_local(x: DistributedArray, dims: Iterable[int]) -> bool:
    """True if every rank has all of the dimensions, False if they contain all divided ones."""
    cut = x.axes.cut_dims & set(dims)
    needs_whole(bool(cut) and cut != x.axes.cut_dims)
    return not cut


def _wrapped(out: Any, x: DistributedArray, layout: Layout) -> Any:
    if isinstance(out, Tensor):
        return arranged(out, layout, x.mesh)
    found = [arranged(one, layout, x.mesh) for one in out]
    return type(out)(found) if hasattr(out, "_fields") else tuple(found)


def _total(x: DistributedArray, dims: tuple[int, ...], keepdim: bool, dtype: torch.dtype) -> Any:
    local = x.local.sum(dims, keepdim, dtype=dtype)
    if _is_local(x, dims):
        return arranged(local, x.axes.reduced(dims, keepdim), x.mesh)
    return all_reduce_forward(local, x.mesh)


@array_rule("sum")
def sum_(input: Distributed, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Sum over some dimensions; replicated if over all divided ones."""
    x = array_of(input)
    of = dtype or (x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else torch.int64)
    return _total(x, dims_of(x, dim), keepdim, accumulation_dtype(of)).to(of)


def _mean(x: DistributedArray, dims: tuple[int, ...], keepdim: bool, dtype: torch.dtype) -> Any:
    return _total(x, dims, keepdim, dtype) / prod(x.shape[one] for one in dims)


@array_rule("mean")
def mean(input: Distributed, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Mean, as ``sum``."""
    x, of = array_of(input), dtype or input.dtype
    needs_whole(not of.is_floating_point)
    return _mean(x, dims_of(x, dim), keepdim, accumulation_dtype(of)).to(of)


def variance(x: DistributedArray, dim: Any, keepdim: bool, correction: Any) -> tuple[Any, Any]:
    """Return the variance, in two passes, and the mean."""
    dims, wide = dims_of(x, dim), accumulation_dtype(x.dtype)
    _is_local(x, dims)
    middle = _mean(x, dims, True, wide)
    away = pointwise(torch.sub, (pointwise(Tensor.to, (x, wide), {}), middle), {})
    count = prod(x.shape[one] for one in dims) - (1 if correction is None else correction)
    squares = pointwise(torch.square, (away,), {})
    found = _total(array_of(squares), dims, keepdim, wide) / count
    return found, middle if keepdim else middle.squeeze(dims)


def _register_spread(name: str, is_deviation: bool, with_mean: bool) -> None:
    @array_rule(name)
    def spread(input: Distributed, *args: Any, **kwargs: Any) -> Any:
        x = array_of(input)
        given = dict(kwargs)
        rest = list(args)
        if rest and isinstance(rest[0], bool):  # var(unbiased)
            given["unbiased"] = rest.pop(0)
        for key in ("dim", "unbiased", "keepdim"):
            if rest:
                given[key] = rest.pop(0)
        unbiased = given.pop("unbiased", None)
        correction = given.pop("correction", None if unbiased is None else int(unbiased))
        dim, keepdim = given.pop("dim", None), given.pop("keepdim", False)
        needs_whole(bool(rest) or bool(given) or not x.dtype.is_floating_point)
        found, middle = variance(x, dim, keepdim, correction)
        found = (found.sqrt() if is_deviation else found).to(x.dtype)
        return (found, middle.to(x.dtype)) if with_mean else found


_register_spread("var", False, False)
_register_spread("std", True, False)
_register_spread("var_mean", False, True)
_register_spread("std_mean", True, True)


def _register_largest(name: str) -> None:
    function = getattr(torch, name)

    @array_rule(name)
    def extreme(input: Distributed, dim: Any = (), keepdim: bool = False) -> Any:
        x = array_of(input)
        dims = dims_of(x, dim)
        if _is_local(x, dims):
            return arranged(function(x.local, dims, keepdim), x.axes.reduced(dims, keepdim), x.mesh)
        sign = 1 if name == "amax" else -1
        out = sign * largest(sign * x.local, x.mesh, dims)
        return out if keepdim else out.squeeze(dims)


_register_largest("amax")
_register_largest("amin")


def _register_of_dim(name: str, over_all: str | None = None) -> None:
    """Register a function that takes one dimension, or two tensors, or no argument."""
    function = getattr(torch, name)

    @array_rule(name)
    def along(input: Distributed, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Any:
        x = array_of(input)
        if isinstance(dim, Tensor):
            needs_whole(name not in ("max", "min"))
            return pointwise(function, (input, dim), {})
        if dim is None and over_all is not None:
            return getattr(torch, over_all)(x)
        at = dim_of(x, dim)
        needs_whole(at in x.axes.cut_dims)
        out = function(x.local, at, keepdim, **kwargs)
        return _wrapped(out, x, x.axes.reduced((at,), keepdim))


_register_of_dim("max", "amax")
_register_of_dim("min", "amin")
for _name in ("all", "any", "argmax", "argmin", "logsumexp", "median", "mode", "prod"):
    _register_of_dim(_name)


def _norm(x: DistributedArray, order: Any, dim: Any, keepdim: bool, dtype: Any) -> Any:
    dims = dims_of(x, dim)
    needs_whole(isinstance(order, str | None) or order < 0)
    if _is_local(x, dims):
        local = torch.linalg.vector_norm(x.local, order, dims, keepdim, dtype=dtype)
        return arranged(local, x.axes.reduced(dims, keepdim), x.mesh)
    shape = [1 if at in dims else extent for at, extent in enumerate(x.local.shape)]
    wide = accumulation_dtype(x.dtype)
    if x.local.numel():
        own = torch.linalg.vector_norm(x.local, order, dims, True, dtype=wide)
    else:
        own = connected_zeros(shape, x.local).to(wide)
    if order == 0:
        out = all_reduce_forward(own, x.mesh)
    else:
        count = x.mesh.size
        places = [(slice(at, at + 1),) for at in range(count)]
        every = all_gather(own[None], x.mesh, (count, *shape), places)
        out = torch.linalg.vector_norm(every, order, 0)
    out = out.to(dtype or x.dtype)
    return out if keepdim else out.squeeze(dims)


@array_rule("norm")
def norm(
    input: Distributed, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Any:
    """Norm of vectors."""
    x = array_of(input)
    order = 2 if p in ("fro", None) else p
    return _norm(x, order, dim, keepdim, dtype)


@array_rule("linalg_vector_norm")
def vector_norm(
    x: Distributed, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """Norm of vectors."""
    return _norm(array_of(x), ord, dim, keepdim, dtype)
