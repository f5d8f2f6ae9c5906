"""Windows over distributed maps: what a rank's outputs read, who sends it, and the padding around.

Knows: cuts of outputs, plans of exchanges, padding at the true border of a map. Does not know: what is
computed from a window.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Protocol

from torch import Tensor
from torch.nn import functional as F

from cotswold.geometry import Box, ExchangePlan, Partition
from cotswold.geometry.box import NOTHING
from cotswold.geometry.partition import even_cuts, following_cuts
from cotswold.mesh.maps.exchange import Exchange
from cotswold.mesh.maps.map import DistributedMap, cut_out
from cotswold.mesh.ranks.mesh import Mesh


class ReceptiveField(Protocol):
    """What an output reads."""

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of the output of a map."""

    def input_box(self, output: Box) -> Box:
        """The pixels (y, x) that a box of outputs reads; what reaches outside of the map is padding."""

    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class Strided:
    """Windows of one size that move in steps, (y, x): convolution, pooling, padding."""

    size: tuple[int, int]
    step: tuple[int, int]
    low: tuple[int, int]
    outputs: tuple[int, int]

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """As many outputs as were said."""
        return self.outputs

    def input_box(self, output: Box) -> Box:
        """From the first output's window to the last one's."""
        first = zip(output.start, self.step, self.low, strict=True)
        last = zip(output.stop, self.step, self.low, self.size, strict=True)
        start = tuple(at * step - low for at, step, low in first)
        return Box(start, tuple((at - 1) * step - low + size for at, step, low, size in last))


@dataclass(frozen=True)
class Windows:
    """What the ranks of a mesh read of a map, and have of the output."""

    partition: Partition
    """Cuts of the output."""
    wanted: tuple[Box, ...]
    """What each rank's outputs read; it may reach outside of the map."""
    inside: tuple[Box, ...]
    """The part of it that is in the map."""
    exchange: Exchange


def windows_of(mesh: Mesh, below: Partition, field: ReceptiveField, cuts: Partition | None = None) -> Windows:
    """The windows of an output that is cut as said, or as the map below it.

    A map that grows out of a few pixels is cut evenly: all of it would follow the ranks of these.
    """
    height, width = field.output_size(*below.shape)

    def rows(output: int) -> tuple[int, int]:
        box = field.input_box(Box((output, 0), (output + 1, 1)))
        return box.start[0], box.stop[0]

    def columns(output: int) -> tuple[int, int]:
        box = field.input_box(Box((0, output), (1, output + 1)))
        return box.start[1], box.stop[1]

    if cuts is None:
        if 0 in (height, width):
            cuts = Partition.even((height, width), below.grid)
        else:
            cuts = Partition(
                _balanced(following_cuts(below.y, height, rows)),
                _balanced(following_cuts(below.x, width, columns)),
            )
    wanted = tuple(field.input_box(box) if box.size else NOTHING for box in cuts.boxes)
    inside = tuple(box.intersect(Box.whole(below.shape)) for box in wanted)
    plan = ExchangePlan(below.boxes, inside)
    return Windows(cuts, wanted, inside, Exchange(mesh, plan))


def _balanced(cuts: tuple[int, ...]) -> tuple[int, ...]:
    """The same cuts, or even ones where every rank can have some and one has twice its share or more."""
    extent, parts = cuts[-1], len(cuts) - 1
    largest = max(stop - start for start, stop in pairwise(cuts))
    return even_cuts(extent, parts) if extent >= parts > 1 and largest >= 2 * -(-extent // parts) else cuts


@lru_cache(maxsize=1024)
def near_outputs(outputs: Box, own: Box, plane: tuple[int, int], field: ReceptiveField) -> Box:
    """Those of a box of outputs that read nothing of the plane (height, width) but a rank's own pixels."""
    edges = []
    for axis in (0, 1):
        found = []
        for output in range(outputs.start[axis], outputs.stop[axis]):
            unit = (output, 0) if axis == 0 else (0, output)
            seen = field.input_box(Box(unit, (unit[0] + 1, unit[1] + 1)))
            first, stop = max(seen.start[axis], 0), min(seen.stop[axis], plane[axis])
            if own.start[axis] <= first and stop <= own.stop[axis]:
                found.append(output)
        first = found[0] if found else outputs.start[axis]
        edges.append((first, found[-1] + 1 if found else first))
    (top, bottom), (left, right) = edges
    return Box((top, left), (bottom, right))


def cached_windows(mesh: Mesh, below: Partition, field: ReceptiveField) -> Windows:
    """``windows_of`` readers that are values."""
    return mesh.cached((windows_of, below, field), lambda: windows_of(mesh, below, field))


def fetch(x: DistributedMap, windows: Windows) -> Tensor:
    """The pixels of the map that this rank reads, without padding."""
    x.copies.check("a window", x.called)
    if x.reach is not None and all(a.contains(b) for a, b in zip(x.reach, windows.inside, strict=True)):
        rank = x.mesh.rank
        window = cut_out(x.source, windows.inside[rank], x.reach[rank])
        return window.clone() if x.passing else window
    return windows.exchange(x.local)


def padded(window: Tensor, windows: Windows, rank: int, fill: float = 0.0) -> Tensor:
    """A rank's window with what lies outside of the map."""
    wanted, inside = windows.wanted[rank], windows.inside[rank]
    if wanted == inside or not wanted.size:
        return window
    return F.pad(window, margins(wanted, inside), value=fill)


def unpadded(window: Tensor, windows: Windows, rank: int) -> Tensor:
    """The part of a padded window that lies in the map."""
    inside = windows.inside[rank]
    left, _, top, _ = margins(windows.wanted[rank], inside)
    height, width = inside.shape
    return window[:, :, top : top + height, left : left + width]


def margins(wanted: Box, inside: Box) -> tuple[int, int, int, int]:
    """What lies left, right, above and below of what is in the map."""
    (top, left), (bottom, right) = wanted.start, wanted.stop
    (y0, x0), (y1, x1) = inside.intersect(wanted).start, inside.intersect(wanted).stop
    return x0 - left, right - x1, y0 - top, bottom - y1
