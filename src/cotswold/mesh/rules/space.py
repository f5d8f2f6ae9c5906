"""Rules for slices of space, and for padding with values of the map: copies of pixels of other places.

Knows: the row and the column that each output copies, which of them a rank fetches. Does not know: windows of
sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor

from cotswold.errors import GeometryError, UserError
from cotswold.geometry import Box, ExchangePlan, Partition
from cotswold.geometry.box import EMPTY_BOX
from cotswold.geometry.partition import chunk_bounds, output_bounds
from cotswold.mesh.maps.distributed_tensor import shares_memory, version_of
from cotswold.mesh.maps.exchange import Exchange
from cotswold.mesh.maps.map import DistributedMap, wrap_all
from cotswold.mesh.maps.windows import Windows, balanced, exchange_halo
from cotswold.mesh.ranks.collectives import all_reduce_backward, connected_zeros
from cotswold.mesh.rules.arrays.operands import notice_whole
from cotswold.mesh.rules.operands import compute_part

Places = tuple[int, ...] | range
"""For each output along an axis, the row or column of the map that it copies."""
MODES = ("reflect", "replicate", "circular")
"""Modes of padding with pixels of the map."""
_Run = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Copies:
    """Boundaries of the output, and the exchanges after which each rank has the pixels that it copies."""

    partition: Partition
    fetched: tuple[tuple[Windows, tuple[int, int]], ...]
    """Windows of one run of rows and one of columns each, and the numbers of the runs."""
    runs: tuple[list[_Run], list[_Run]]
    """Rows and columns that this rank copies, in runs of neighbours."""


def copied(x: DistributedMap, rows: Places, columns: Places, cuts: Partition | None = None) -> DistributedMap:
    """Return the pixels of these rows and columns, as ``x[:, :, rows][..., columns]``.

    Args:
        x: The map.
        rows: The row of the map that each row of the output copies.
        columns: The column of the map that each column of the output copies.
        cuts: Boundaries of the output (default: they follow those of the map).
    """
    key = copied, x.partition, rows, columns, cuts
    plan: _Copies = x.mesh.cached(key, lambda: _planned(x, rows, columns, cuts))
    box = plan.partition.box(x.mesh.rank)
    windows = [exchange_halo(x, fetched) for fetched, _ in plan.fetched]

    def compute() -> Tensor:
        pieces: dict[tuple[int, int], Tensor] = {}
        unused: list[Tensor] = []
        for window, (_, (down, across)) in zip(windows, plan.fetched, strict=True):
            if down < len(plan.runs[0]) and across < len(plan.runs[1]):
                part = _selected(window, 2, plan.runs[0][down])
                pieces[down, across] = _selected(part, 3, plan.runs[1][across])
            else:
                unused.append(window)
        joined = [
            _joined([pieces[down, across] for across in range(len(plan.runs[1]))], 3)
            for down in range(len(plan.runs[0]))
        ]
        out = _joined(joined, 2)
        if unused:  # other ranks wait for their gradients
            out = out + connected_zeros((1, 1, 1, 1), *unused)
        return out.clone() if shares_memory(out, x.source) else out

    out = compute_part(box, x.shape[1], compute, windows[0], *windows[1:])
    return DistributedMap(out, plan.partition, x.mesh)


def _planned(x: DistributedMap, rows: Places, columns: Places, cuts: Partition | None) -> _Copies:
    if cuts is None:
        cuts = Partition(_cuts(x.partition.y, rows), _cuts(x.partition.x, columns))
    far = tuple(max(extent // 2, 1) for extent in x.partition.shape)
    runs = [
        tuple(
            _runs(places[box.start[at] : box.stop[at]], far[at]) if box.size else []
            for at, places in enumerate((rows, columns))
        )
        for box in cuts.boxes
    ]
    most = [max(1, *(len(of_rank[at]) for of_rank in runs)) for at in (0, 1)]
    fetched = []
    for down, across in product(range(most[0]), range(most[1])):
        boxes = tuple(
            _hull(of_rank[0][down], of_rank[1][across])
            if down < len(of_rank[0]) and across < len(of_rank[1])
            else EMPTY_BOX
            for of_rank in runs
        )
        exchange = Exchange(x.mesh, ExchangePlan(x.partition.boxes, boxes))
        fetched.append((Windows(cuts, boxes, boxes, exchange), (down, across)))
    down_runs, across_runs = runs[x.mesh.rank]
    return _Copies(cuts, tuple(fetched), (down_runs, across_runs))


def _cuts(below: tuple[int, ...], places: Places) -> tuple[int, ...]:
    """Boundaries of an axis whose outputs copy rising places follow those of the map; others are even."""
    if any(b < a for a, b in pairwise(places)):
        return chunk_bounds(len(places), len(below) - 1)
    return balanced(output_bounds(below, len(places), lambda output: (places[output], places[output] + 1)))


def _runs(places: Sequence[int], far: int) -> list[_Run]:
    """Split places where two neighbours are more than ``far`` apart."""
    out: list[list[int]] = []
    for at, place in enumerate(places):
        if at == 0 or abs(place - places[at - 1]) > far:
            out.append([])
        out[-1].append(place)
    return [tuple(run) for run in out]


def _hull(rows: _Run, columns: _Run) -> Box:
    return Box((min(rows), min(columns)), (max(rows) + 1, max(columns) + 1))


def _selected(window: Tensor, dim: int, run: _Run) -> Tensor:
    """Select a run of places from a window that begins at the smallest of them."""
    first, extent = min(run), window.shape[dim]
    if run == tuple(range(first, first + extent)):
        return window
    return window.index_select(dim, torch.tensor([at - first for at in run], device=window.device))


def _joined(pieces: list[Tensor], dim: int) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)


def watched(x: DistributedMap, copy: DistributedMap) -> DistributedMap:
    """Watch a copy that torch would make a view: a change in place of either raises an error."""
    x.copies.add_distributed(copy, copy.local)
    return copy


def _by_dimension(index: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return an index for each dimension in place of Ellipsis and of what is missing."""
    if sum(one is Ellipsis for one in index) == 1:
        at = next(at for at, one in enumerate(index) if one is Ellipsis)
        index = index[:at] + (slice(None),) * (5 - len(index)) + index[at + 1 :]
    return index + (slice(None),) * (4 - len(index))


def of_space(index: tuple[Any, ...]) -> bool:
    """True for slices of all dimensions, or numbers of rows and columns, that select a part of space."""
    each = _by_dimension(index)
    return (
        len(each) == 4
        and all(isinstance(one, slice) for one in each[:2])
        and all(isinstance(one, slice) or type(one) is int for one in each[2:])
        and any(one != slice(None) for one in each[2:])
    )


def _has_whole(x: DistributedMap) -> bool:
    """True for a batch that every rank has whole, so that slices of space are views of it."""
    return x._whole is not None and shares_memory(x._whole, x.source)


def indexed(x: DistributedMap, index: tuple[Any, ...]) -> Any:
    """Return slices, rows or columns of a map, for an index that is `of_space`."""
    each = _by_dimension(index)
    places = [_places(one, extent) for one, extent in zip(each[2:], x.partition.shape, strict=True)]
    if _has_whole(x):
        found = x.full_tensor()[each]
        return DistributedMap.of(found, x.mesh) if found.dim() == 4 else found
    lines = [at for at in (2, 3) if isinstance(each[at], int)]
    part = x.apply_view(lambda own: own[each[:2]])
    if tuple(map(len, places)) != x.partition.shape:
        part = watched(x, copied(part, places[0], places[1]))
    if not lines:
        return part
    notice_whole("a row or a column", x)
    whole = part.full_tensor()
    if x.mesh.size > 1:
        x.copies.add(whole, version_of(whole))
    return whole[tuple(0 if at in lines else slice(None) for at in range(4))]


def assign(x: DistributedMap, index: tuple[Any, ...], value: Any) -> None:
    """Assign a number or a tensor to a part of space, in place, for an index that is `of_space`."""
    if x.halo_boxes is not None:
        raise UserError(
            "assignment to rows or columns of a batch from outside is not supported; assign to x.clone(), or "
            "use torch.where"
        )
    each = _by_dimension(index)
    places = [_places(one, extent) for one, extent in zip(each[2:], x.partition.shape, strict=True)]
    own, given = [], []
    for found, first, stop in zip(places, x.box.start, x.box.stop, strict=True):
        inside = [at for at, place in enumerate(found) if first <= place < stop]
        given.append(slice(inside[0], inside[-1] + 1) if inside else slice(0))
        own.append(
            slice(found[inside[0]] - first, found[inside[-1]] - first + 1, found.step) if inside else slice(0)
        )
    part = x.local[(*each[:2], *own)]
    if isinstance(value, DistributedMap):
        notice_whole("an assignment", value, divided=True)
        value = value.full_tensor()
    if isinstance(value, Tensor) and value.dim():
        if any(isinstance(one, int) for one in each):
            raise UserError("assign tensors to slices of a distributed map, such as x[:, :, 0:1] = row")
        shape = (*part.shape[:2], *map(len, places))
        value = all_reduce_backward(value, x.mesh).expand(shape)[(..., *given)]
    if isinstance(value, Tensor):
        part.copy_(value)
    else:
        part.fill_(value)


def _places(index: slice | int, extent: int) -> range:
    if isinstance(index, int):
        if not -extent <= index < extent:
            raise IndexError(f"index {index} is out of bounds for a dimension of {extent}")
        index %= extent
        return range(index, index + 1)
    found = range(*index.indices(extent))
    if not found:
        raise UserError(
            f"the slice {index.start}:{index.stop} leaves nothing of {extent} rows or columns of a "
            "distributed map; use a slice with at least one"
        )
    return found


def along_space(function: Callable[..., Any], x: DistributedMap, dim: int, args: Any, kwargs: Any) -> Any:
    """Apply ``narrow``, ``chunk``, ``split`` or ``index_select`` to rows (``dim`` 2) or columns (3).

    Args:
        function: The function of torch.
        x: The map.
        dim: The dimension that the other arguments name.
        args: Other positional arguments.
        kwargs: Other arguments.
    """
    shape = [1, 1, 1, 1]
    shape[dim] = x.shape[dim]
    places = torch.arange(x.shape[dim], device=x.device).view(shape)
    every = range(x.partition.shape[3 - dim])
    if _has_whole(x) and function is not torch.index_select:
        return wrap_all(function(x._whole, *args, **kwargs), lambda own: DistributedMap.of(own, x.mesh))

    def copy(chosen: Tensor) -> DistributedMap:
        wanted = tuple(chosen.flatten().tolist())
        return watched(x, copied(x, wanted, every) if dim == 2 else copied(x, every, wanted))

    return wrap_all(function(places, *args, **kwargs), copy)


def _index(mode: str, extent: int, low: int, high: int) -> tuple[int, ...]:
    """The place that each output of a padded axis copies; ``circular`` repeats what a crop leaves."""
    first, kept = max(-low, 0), extent - max(-low, 0) - max(-high, 0)
    most = {"reflect": extent - 1, "circular": kept}.get(mode, max(low, high))
    if max(low, high) > most or kept < 1:
        raise GeometryError(
            f"padding by {low} and {high} in mode {mode!r} does not fit {extent} pixels; use at most {most}"
        )
    wanted = range(-low, extent + high)
    if mode == "replicate":
        return tuple(min(max(at, 0), extent - 1) for at in wanted)
    if mode == "circular":
        return tuple(first + (at - first) % kept for at in wanted)
    return tuple(extent - 1 - abs(extent - 1 - abs(at)) for at in wanted)


def pad_with_pixels(x: DistributedMap, sides: Sequence[int], mode: str) -> DistributedMap:
    """Pad with pixels of the map: ``reflect``, ``replicate`` or ``circular``.

    Args:
        x: The map.
        sides: Padding left, right, above and below; negative numbers crop.
        mode: The mode, as in torch.
    """
    (height, width), (left, right, above, below) = x.partition.shape, sides
    rows, columns = _index(mode, height, above, below), _index(mode, width, left, right)
    cuts = Partition(
        _cuts(x.partition.y, range(-above, height + below)), _cuts(x.partition.x, range(-left, width + right))
    )
    return copied(x, rows, columns, cuts)
