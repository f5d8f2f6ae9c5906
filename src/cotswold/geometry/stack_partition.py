"""A stack over a grid of ranks: which blocks, pixels and units each rank has, and what must be exchanged.

Knows: the parts of every map of a stack, the plans between them, integers only. Does not know: tensors,
messages. The simulator counts bytes from the same plans by which a mesh moves them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from cotswold.geometry.block_local import BlockLocal
from cotswold.geometry.box import Box
from cotswold.geometry.exchange import ExchangePlan
from cotswold.geometry.partition import Grid, Partition, following_cuts, middle_cuts
from cotswold.geometry.stack import Smoothing, StackGeometry
from cotswold.geometry.window import Window


@dataclass(frozen=True)
class StackPartition:
    """A stack cut over a grid: a rank owns the filters of its blocks, ``ceil(n / k)`` rows and columns.

    Boxes are (y, x) in the map they speak of. Ranks that have no blocks read, hold and compute nothing.
    """

    geometry: StackGeometry
    grid: Grid

    @cached_property
    def blocks(self) -> Partition:
        """The blocks of every rank: DTensor's split of the filters."""
        return Partition.even(self.geometry.filters.grid, self.grid)

    @cached_property
    def windows(self) -> tuple[Box, ...]:
        """The pixels of the input map that every rank's blocks see."""
        return tuple(
            self.geometry.filters.part(box)[1] if box.size else Box((0, 0), (0, 0))
            for box in self.blocks.boxes
        )

    def layer(self, rank: int) -> BlockLocal | None:
        """The rank's blocks as a layer on its window; None where it has none."""
        blocks = self.blocks.box(rank)
        return self.geometry.filters.part(blocks)[0] if blocks.size else None

    @cached_property
    def input(self) -> Partition:
        """Who owns which pixel of the input map: its part of the decoded map, of the residual."""
        layer, blocks = self.geometry.filters, self.blocks
        return Partition(
            _amid(blocks.y, layer.y, layer.input.height), _amid(blocks.x, layer.x, layer.input.width)
        )

    @cached_property
    def batch(self) -> tuple[Box, ...]:
        """The pixels of a batch that every rank holds: its window and its own part."""
        return tuple(_hull(window, own) for window, own in zip(self.windows, self.input.boxes, strict=True))

    @cached_property
    def responses(self) -> Partition:
        """The responses that every rank computes."""
        return self.blocks.times(self.geometry.filters.rows, self.geometry.filters.columns)

    @cached_property
    def pooled(self) -> Partition:
        """The pooling units of every rank."""
        return _follow(self.responses, self.geometry.pool)

    @cached_property
    def output(self) -> Partition:
        """The part of the stack's output of every rank."""
        norm = self.geometry.norm
        return self.pooled if norm.size == 1 else _follow(_follow(self.pooled, norm), norm)

    @cached_property
    def pixels(self) -> ExchangePlan:
        """Own pixels of the input map to the windows of blocks; its adjoint sums what blocks decode."""
        return ExchangePlan(self.input.boxes, self.windows)

    @cached_property
    def pooling(self) -> ExchangePlan:
        """Responses to the windows of pooling units."""
        reads = _seen(self.pooled, self.geometry.pool, self.responses.shape)
        return ExchangePlan(self.responses.boxes, reads)

    @cached_property
    def normalisation(self) -> ExchangePlan:
        """Pooling units to the windows of outputs, through both steps of contrast normalisation."""
        norm = self.geometry.norm
        if norm.size == 1:
            return ExchangePlan(self.pooled.boxes, self.pooled.boxes)
        between = norm.output(self.geometry.pooled)
        halfway = _seen(self.output, norm, (between.height, between.width))
        return ExchangePlan(self.pooled.boxes, tuple(_reads(box, norm, self.pooled.shape) for box in halfway))


def _amid(cuts: tuple[int, ...], window: Window, extent: int) -> tuple[int, ...]:
    windows = [
        (window.reads(first, extent)[0], window.reads(stop - 1, extent)[1]) if stop > first else (0, 0)
        for first, stop in pairwise(cuts)
    ]
    return middle_cuts(windows, extent)


def _hull(a: Box, b: Box) -> Box:
    if not a.size or not b.size:
        return a if a.size else b
    return Box(
        tuple(min(pair) for pair in zip(a.start, b.start, strict=True)),
        tuple(max(pair) for pair in zip(a.stop, b.stop, strict=True)),
    )


def _follow(below: Partition, smoothing: Smoothing) -> Partition:
    window = smoothing.window

    def cuts(of: tuple[int, ...]) -> tuple[int, ...]:
        def reads(output: int) -> tuple[int, int]:
            first = output - window.low
            return first, first + window.size

        return following_cuts(of, window.outputs(of[-1]), reads)

    return Partition(cuts(below.y), cuts(below.x))


def _seen(outputs: Partition, smoothing: Smoothing, shape: tuple[int, int]) -> tuple[Box, ...]:
    return tuple(_reads(box, smoothing, shape) for box in outputs.boxes)


def _reads(box: Box, smoothing: Smoothing, shape: tuple[int, int]) -> Box:
    """What a box of outputs reads of a map (height, width)."""
    if box.size == 0:
        return Box((0, 0), (0, 0))
    window = smoothing.window
    edges = [
        (window.reads(first, extent)[0], window.reads(stop - 1, extent)[1])
        for first, stop, extent in zip(box.start, box.stop, shape, strict=True)
    ]
    return Box(tuple(first for first, _ in edges), tuple(stop for _, stop in edges))
