"""Rules for sampling a map at places that a tensor gives, and for maxima of windows with their places.

Knows: the pixels around a place, the box of them that a rank fetches. Does not know: how places are computed.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cotswold.geometry import Box, ExchangePlan, Partition
from cotswold.geometry.box import EMPTY_BOX
from cotswold.mesh.maps.exchange import Exchange
from cotswold.mesh.maps.map import DistributedMap
from cotswold.mesh.maps.windows import Windows, exchange_halo, kept_window, padded
from cotswold.mesh.ranks.collectives import all_reduce_backward
from cotswold.mesh.rules.arrays.operands import notice_whole
from cotswold.mesh.rules.operands import compute_part
from cotswold.mesh.rules.registry import rule
from cotswold.mesh.rules.whole import whole

_REACH = {"nearest": (-1, 2), "bilinear": (-1, 2), "bicubic": (-2, 3)}
"""Pixels before and after a place that its sample may read, one more than in exact arithmetic."""


@rule("grid_sample")
def grid_sample(
    input: Any,
    grid: Any,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Any:
    """Sample a map at the places of a replicated grid; a rank fetches the box of pixels that it reads.

    The window is padded to the whole map, so that torch rounds each place as in one process.
    """
    if not isinstance(input, DistributedMap) or isinstance(grid, DistributedMap) or mode not in _REACH:
        given = (input, grid, mode, padding_mode, align_corners)
        return whole("grid_sample", F.grid_sample, given, {}, divided=True)
    x, plane = input, Box.whole(input.partition.shape)
    notice_whole("grid_sample", x, divided=True)
    cuts = Partition.even((grid.shape[1], grid.shape[2]), x.mesh.grid)
    box = cuts.box(x.mesh.rank)
    own = all_reduce_backward(grid, x.mesh)[(slice(None), *box.slices)]
    read = (
        plane if box.size and padding_mode == "reflection" else _read(own, mode, plane, bool(align_corners))
    )
    boxes = _boxes(x, read)
    exchange = Exchange(x.mesh, ExchangePlan(x.partition.boxes, boxes))
    windows = Windows(cuts, (plane,) * len(boxes), boxes, exchange)
    window = exchange_halo(x, windows)

    def compute() -> Tensor:
        seen = padded(window, windows, x.mesh.rank)
        with kept_window(x, windows, window, seen):
            return F.grid_sample(seen, own, mode, padding_mode, align_corners)

    return DistributedMap(compute_part(box, x.shape[1], compute, window, own), cuts, x.mesh)


def _read(own: Tensor, mode: str, plane: Box, align: bool) -> Box:
    """Return the box (y, x) of the pixels of a plane that samples read, at least one pixel."""
    if not own.numel():
        return EMPTY_BOX
    places = torch.nan_to_num(own.detach().reshape(-1, 2).double()).clamp(-1e6, 1e6)
    ends = zip(plane.stop, places.amin(0).flip(0).tolist(), places.amax(0).flip(0).tolist(), strict=True)
    start, stop = [], []
    for extent, *fractions in ends:
        first, last = (
            (one + 1) / 2 * (extent - 1) if align else ((one + 1) * extent - 1) / 2 for one in fractions
        )
        before, after = _REACH[mode]
        start.append(min(max(math.floor(first) + before, 0), extent - 1))
        stop.append(min(max(math.floor(last) + after, 0), extent - 1) + 1)
    return Box(tuple(start), tuple(stop))


def _boxes(x: DistributedMap, own: Box) -> tuple[Box, ...]:
    """Return the boxes of all ranks."""
    told = torch.tensor([*own.start, *own.stop], dtype=torch.int64, device="cpu")
    found = [one.tolist() for one in x.mesh.gather(told)]
    return tuple(Box((y0, x0), (y1, x1)) for y0, x0, y1, x1 in found)
