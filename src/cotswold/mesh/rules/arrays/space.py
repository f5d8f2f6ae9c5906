"""Rules for functions that move pixels: roll, flip, and padding of views of maps.

Knows: which box of the map each rank's outputs come from. Does not know: windows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cotswold.geometry import Box, ExchangePlan
from cotswold.geometry.box import EMPTY_BOX
from cotswold.mesh.maps.array import arranged, array_of
from cotswold.mesh.maps.exchange import Exchange
from cotswold.mesh.maps.layout import Axis
from cotswold.mesh.maps.map import DistributedMap
from cotswold.mesh.ranks.collectives import connected_zeros
from cotswold.mesh.ranks.mesh import Mesh
from cotswold.mesh.rules.arrays.operands import dim_of, in_order_of, needs_whole
from cotswold.mesh.rules.arrays.shape import Distributed, as_map
from cotswold.mesh.rules.registry import array_rule, find_rule


def _sides(x: Any, dims: list[int]) -> tuple[list[int], dict[int, int]]:
    """Split dimensions into those of which every rank has all, and the divided ones with their sides."""
    whole, divided = [], {}
    for at in dims:
        if at not in x.axes.cut_dims:
            whole.append(at)
            continue
        factor = x.axes.dims[at][0]
        needs_whole(len(x.axes.dims[at]) > 1 or not isinstance(factor, Axis))
        divided[at] = factor.side
    return whole, divided


@array_rule("roll")
def roll(input: Distributed, shifts: Any, dims: Any = None) -> Any:
    """Shift dimensions cyclically; divided ones by messages."""
    x = array_of(input)
    given = [dims] if isinstance(dims, int) else list(dims or ())
    steps = [shifts] if isinstance(shifts, int) else list(shifts)
    needs_whole(not given or len(given) != len(steps))
    by: dict[int, int] = {}
    for dim, step in zip(given, steps, strict=True):
        by[dim_of(x, dim)] = by.get(dim_of(x, dim), 0) + step
    whole, divided = _sides(x, list(by))
    local = x.local.roll([by[at] for at in whole], whole) if whole else x.local
    out: Any = arranged(local, x.axes, x.mesh)
    if divided:
        mapped, back = as_map(array_of(out))
        sides = {side: by[at] for at, side in divided.items()}
        out = back(_rolled(mapped, sides.get(0, 0), sides.get(1, 0)))
    return out


def _rolled(x: DistributedMap, down: int, across: int) -> DistributedMap:
    """Shift a map cyclically: each rank fetches up to four boxes of it."""
    ranges = [
        _pieces(extent, shift % extent)
        for extent, shift in zip(x.partition.shape, (down, across), strict=True)
    ]
    rows = [
        torch.cat([_moved_piece(x, of_rows, of_columns) for of_columns in ranges[1]], 3)
        for of_rows in ranges[0]
    ]
    return x.like(in_order_of(x.local, torch.cat(rows, 2)))


_Piece = tuple[int, int, int]
"""First and last target of a range of an axis, and the distance from its source."""


def _pieces(extent: int, shift: int) -> list[_Piece]:
    """Return the ranges of an axis that keep their order, as targets (first, stop), and their shift."""
    found = [(0, shift, shift - extent), (shift, extent, shift)]
    return [one for one in found if one[1] > one[0]]


def _moved_piece(x: DistributedMap, rows: _Piece, columns: _Piece) -> Tensor:
    """Return this rank's pixels of a piece, from where they were."""

    def plan() -> Exchange:
        target = Box((rows[0], columns[0]), (rows[1], columns[1]))
        reads = []
        for box in x.partition.boxes:
            inside = box.intersect(target)
            (top, left), (bottom, right) = inside.start, inside.stop
            down, across = rows[2], columns[2]
            reads.append(
                Box((top - down, left - across), (bottom - down, right - across)) if inside.size else inside
            )
        return Exchange(x.mesh, ExchangePlan(x.partition.boxes, tuple(reads)))

    found = _cached(x.mesh, (_moved_piece, x.partition, rows, columns), plan)(x.local)
    extents = [
        max(min(stop, last) - max(start, first), 0)
        for start, stop, (first, last, _) in zip(x.box.start, x.box.stop, (rows, columns), strict=True)
    ]
    # A rank that fetches nothing takes part in the messages of the backward pass.
    return found if found.numel() else connected_zeros((*x.shape[:2], *extents), found)


def _cached(mesh: Mesh, key: Any, make: Any) -> Exchange:
    found: Exchange = mesh.cached(key, make)
    return found


@array_rule("flip")
def flip(input: Distributed, *dims: Any, **kwargs: Any) -> Any:
    """Reverse dimensions; divided ones by messages."""
    x = array_of(input)
    given = kwargs.get("dims", dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims)
    wanted = [dim_of(x, one) for one in ((given,) if isinstance(given, int) else given)]
    whole, divided = _sides(x, wanted)
    out: Any = arranged(x.local.flip(whole) if whole else x.local * 1, x.axes, x.mesh)
    if divided:
        mapped, back = as_map(array_of(out))
        out = back(_flipped(mapped, set(divided.values())))
    return out


@array_rule("fliplr")
def fliplr(input: Distributed) -> Any:
    """Reverse the second dimension."""
    return flip(input, 1)


@array_rule("flipud")
def flipud(input: Distributed) -> Any:
    """Reverse the first dimension."""
    return flip(input, 0)


def _flipped(x: DistributedMap, sides: set[int]) -> DistributedMap:
    """Reverse rows or columns of a map: each rank fetches the mirror image of its part."""

    def plan() -> Exchange:
        reads = []
        for box in x.partition.boxes:
            start, stop = list(box.start), list(box.stop)
            for side in sides:
                extent = x.partition.shape[side]
                start[side], stop[side] = extent - box.stop[side], extent - box.start[side]
            reads.append(Box(tuple(start), tuple(stop)) if box.size else EMPTY_BOX)
        return Exchange(x.mesh, ExchangePlan(x.partition.boxes, tuple(reads)))

    found = _cached(x.mesh, (_flipped, x.partition, frozenset(sides)), plan)(x.local)
    if not x.box.size:
        found = found.reshape(*found.shape[:2], *x.box.shape)
    return x.like(in_order_of(x.local, found.flip([2 + side for side in sides])))


@array_rule("pad")
def pad(input: Distributed, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    """Pad rows and columns by the rule of maps, and other dimensions on each rank."""
    x = array_of(input)
    sides = list(pad)
    needs_whole(len(sides) % 2 == 1 or len(sides) > 2 * x.dim() or mode != "constant")
    pairs = {x.dim() - 1 - at: (sides[2 * at], sides[2 * at + 1]) for at in range(len(sides) // 2)}
    needed = [at for at, pair in pairs.items() if pair != (0, 0)]
    whole, divided = _sides(x, needed)
    if not needed:
        return arranged(x.local.clone(), x.axes, x.mesh)
    needs_whole(bool(whole))
    mapped, back = as_map(x)
    by = {side: pairs[at] for at, side in divided.items()}
    rule = find_rule("pad")
    assert rule is not None
    return back(rule(mapped, (*by.get(1, (0, 0)), *by.get(0, (0, 0))), "constant", value))
