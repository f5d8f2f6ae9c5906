"""Windows over distributed maps: the input box of each rank's outputs, its halo, and the padding.

Knows: boundaries of outputs, plans of exchanges, padding at the true border of a map. Does not know: what is
computed from a window.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Protocol

from torch import Tensor
from torch.nn import functional as F

from cotswold.geometry import Box, ExchangePlan, Partition
from cotswold.geometry.box import EMPTY_BOX
from cotswold.geometry.partition import chunk_bounds, output_bounds
from cotswold.mesh.maps.distributed_tensor import shares_memory
from cotswold.mesh.maps.exchange import Exchange
from cotswold.mesh.maps.kept import kept_as_parts, window_boxes
from cotswold.mesh.maps.map import DistributedMap, crop_or_zeros
from cotswold.mesh.ranks.mesh import Mesh


class ReceptiveField(Protocol):
    """The pixels that an output reads."""

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the number of output rows and columns for a map."""

    def input_box(self, output: Box) -> Box:
        """Return the box (y, x) that a box of outputs reads; pixels outside of the map are padding."""

    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class Strided:
    """Windows of one size with a stride, (y, x): convolution, pooling, padding."""

    size: tuple[int, int]
    step: tuple[int, int]
    low: tuple[int, int]
    outputs: tuple[int, int]

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the fixed number of outputs."""
        return self.outputs

    def input_box(self, output: Box) -> Box:
        """Return the box from the first output's window to the last one's."""
        first = zip(output.start, self.step, self.low, strict=True)
        last = zip(output.stop, self.step, self.low, self.size, strict=True)
        start = tuple(at * step - low for at, step, low in first)
        return Box(start, tuple((at - 1) * step - low + size for at, step, low, size in last))


@dataclass(frozen=True)
class Windows:
    """Input and output boxes of all ranks of a mesh."""

    partition: Partition
    """Boundaries of the output."""
    wanted: tuple[Box, ...]
    """Box that each rank's outputs read; it may exceed the map."""
    inside: tuple[Box, ...]
    """Part of that box which is inside the map."""
    exchange: Exchange


def windows_of(mesh: Mesh, below: Partition, field: ReceptiveField, cuts: Partition | None = None) -> Windows:
    """Plan the windows of an output; its boundaries are ``cuts``, or follow those of the map below.

    An output that grows from a few pixels is divided evenly; otherwise all of it would be on the ranks that
    have these pixels.
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
                balanced(output_bounds(below.y, height, rows)),
                balanced(output_bounds(below.x, width, columns)),
            )
    wanted = tuple(field.input_box(box) if box.size else EMPTY_BOX for box in cuts.boxes)
    inside = tuple(box.intersect(Box.whole(below.shape)) for box in wanted)
    plan = ExchangePlan(below.boxes, inside)
    return Windows(cuts, wanted, inside, Exchange(mesh, plan))


def balanced(cuts: tuple[int, ...]) -> tuple[int, ...]:
    """Return the boundaries, or even ones if they are very unequal.

    Even boundaries are used if each rank can have a part, and one part is twice its share or more.
    """
    extent, parts = cuts[-1], len(cuts) - 1
    largest = max(stop - start for start, stop in pairwise(cuts))
    return chunk_bounds(extent, parts) if extent >= parts > 1 and largest >= 2 * -(-extent // parts) else cuts


@lru_cache(maxsize=1024)
def near_outputs(outputs: Box, own: Box, plane: tuple[int, int], field: ReceptiveField) -> Box:
    """Return the outputs of a box that read only a rank's own pixels of the plane (height, width)."""
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
    """Return `windows_of` from the mesh's cache."""
    return mesh.cached((windows_of, below, field), lambda: windows_of(mesh, below, field))


def exchange_halo(x: DistributedMap, windows: Windows) -> Tensor:
    """Fetch the pixels of the map that this rank reads, without padding."""
    x.copies.check("a window", x.called)
    if x.halo_boxes is not None and all(
        a.contains(b) for a, b in zip(x.halo_boxes, windows.inside, strict=True)
    ):
        rank = x.mesh.rank
        window = crop_or_zeros(x.source, windows.inside[rank], x.halo_boxes[rank])
        return window.clone() if x.passing else window
    return windows.exchange(x.local)


def padded(window: Tensor, windows: Windows, rank: int, fill: float = 0.0) -> Tensor:
    """Pad a rank's window where it exceeds the map."""
    wanted, inside = windows.wanted[rank], windows.inside[rank]
    if wanted == inside or not wanted.size:
        return window
    return F.pad(window, margins(wanted, inside), value=fill)


def kept_window(
    x: DistributedMap, windows: Windows, window: Tensor, seen: Tensor, fill: float = 0.0
) -> AbstractContextManager[None]:
    """Let operations in a `with` block save this rank's part of a map and the halo in place of a window.

    Args:
        x: The map.
        windows: Boxes of the window.
        window: The window from `exchange_halo`.
        seen: The same window from `padded`, with the value ``fill``.
        fill: The value.
    """
    rank = x.mesh.rank
    inside = windows.inside[rank]
    is_all = x.passing or shares_memory(window, x.source)
    part, own = (window, inside) if is_all else (x.local, x.box)
    return kept_as_parts(
        window_boxes(own, inside, fill), part, (window, inside), (seen, windows.wanted[rank])
    )


def unpadded(window: Tensor, windows: Windows, rank: int) -> Tensor:
    """Remove the padding from a rank's window."""
    inside = windows.inside[rank]
    left, _, top, _ = margins(windows.wanted[rank], inside)
    height, width = inside.shape
    return window[:, :, top : top + height, left : left + width]


def margins(wanted: Box, inside: Box) -> tuple[int, int, int, int]:
    """Return the widths of the padding: left, right, above, below."""
    (top, left), (bottom, right) = wanted.start, wanted.stop
    (y0, x0), (y1, x1) = inside.intersect(wanted).start, inside.intersect(wanted).stop
    return x0 - left, right - x1, y0 - top, bottom - y1
