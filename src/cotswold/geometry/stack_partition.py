"""Partition of a stack over a grid of ranks: blocks, pixels and units of each rank, and their exchanges.

Knows: the parts of every map of a stack and the exchange plans between them, in integers. Does not know:
tensors, messages. The simulator counts bytes from the same plans that a mesh executes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from cotswold.geometry.block_local import BlockLocal, MapShape
from cotswold.geometry.box import EMPTY_BOX, Box
from cotswold.geometry.exchange import ExchangePlan
from cotswold.geometry.partition import Grid, Partition, midpoint_bounds, output_bounds
from cotswold.geometry.stack import Smoothing, StackGeometry
from cotswold.geometry.window import Window


@dataclass(frozen=True)
class StackPartition:
    """A stack cut over a grid: a rank owns the filters of its blocks, ``ceil(n / k)`` rows and columns.

    All boxes are ``(y, x)`` in the map they refer to. Ranks without blocks read, hold and compute nothing.

    Args:
        geometry: Shapes of the stack.
        grid: Grid of ranks.
    """

    geometry: StackGeometry
    grid: Grid

    @cached_property
    def blocks(self) -> Partition:
        """Blocks of every rank, split as DTensor splits the filters."""
        return Partition.even(self.geometry.filters.grid, self.grid)

    @cached_property
    def windows(self) -> tuple[Box, ...]:
        """Input pixels that every rank holds: the fields of its blocks, and the pixels that it owns."""
        layer, cuts = self.geometry.filters, self.blocks
        return tuple(
            Box((rows[0], columns[0]), (rows[1], columns[1]))
            for rows in _ranges_read_and_own(cuts.y, self.input.y, layer.y, layer.input.height)
            for columns in _ranges_read_and_own(cuts.x, self.input.x, layer.x, layer.input.width)
        )

    def layer(self, rank: int) -> BlockLocal | None:
        """Return the rank's blocks as a layer on its window, or None if it has no blocks."""
        blocks, window = self.blocks.box(rank), self.windows[rank]
        if not blocks.size:
            return None
        layer, _ = self.geometry.filters.part(blocks)
        height, width = window.shape
        return replace(layer, input=replace(layer.input, height=height, width=width))

    @cached_property
    def input(self) -> Partition:
        """Owner of each input pixel, which also owns that pixel of the decoded map and of the residual."""
        layer, blocks = self.geometry.filters, self.blocks
        down = _ranges_read(blocks.y, layer.y, layer.input.height)
        across = _ranges_read(blocks.x, layer.x, layer.input.width)
        return Partition(
            midpoint_bounds(down, layer.input.height), midpoint_bounds(across, layer.input.width)
        )

    @cached_property
    def responses(self) -> Partition:
        """Responses that every rank computes."""
        return self.blocks.times(self.geometry.filters.rows, self.geometry.filters.columns)

    @cached_property
    def pooled(self) -> Partition:
        """Pooling units of every rank."""
        return _partition_above(self.responses, self.geometry.pool)

    @cached_property
    def output(self) -> Partition:
        """Part of the stack's output of every rank."""
        norm = self.geometry.norm
        return self.pooled if norm.size == 1 else _partition_above(_partition_above(self.pooled, norm), norm)

    @cached_property
    def pixels(self) -> ExchangePlan:
        """Exchange of owned input pixels to the windows of blocks; its adjoint sums the decoded overlaps."""
        return ExchangePlan(self.input.boxes, self.windows)

    @cached_property
    def pooling(self) -> ExchangePlan:
        """Exchange of responses to the windows of pooling units, including the zeros around a padded map."""
        window = self.geometry.pool.window

        def reads(box: Box) -> Box:
            if not box.size:
                return EMPTY_BOX
            first = tuple(at - window.pad_before for at in box.start)
            return Box(first, tuple(at - window.pad_before + window.size - 1 for at in box.stop))

        return ExchangePlan(self.responses.boxes, tuple(reads(box) for box in self.pooled.boxes))

    @cached_property
    def normalisation(self) -> ExchangePlan:
        """Exchange of pooling units to the windows of outputs, through both steps of contrast normalisation.

        A window ends at the border of the map, where a padded map has zeros before either step.
        """
        norm = self.geometry.norm
        if norm.size == 1:
            return ExchangePlan(self.pooled.boxes, self.pooled.boxes)
        between, pooled = norm.output(self.geometry.pooled), self.geometry.pooled
        halfway = (_reads(box, norm.window, between) for box in self.output.boxes)
        return ExchangePlan(self.pooled.boxes, tuple(_reads(box, norm.window, pooled) for box in halfway))


def _ranges_read(cuts: tuple[int, ...], window: Window, extent: int) -> list[tuple[int, int]]:
    """Range of an axis that the windows of each part read; (0, 0) for an empty part."""
    return [
        (window.reads(first, extent)[0], window.reads(stop - 1, extent)[1]) if stop > first else (0, 0)
        for first, stop in pairwise(cuts)
    ]


def _ranges_read_and_own(
    cuts: tuple[int, ...], own: tuple[int, ...], window: Window, extent: int
) -> list[tuple[int, int]]:
    return [
        (min(first, start), max(stop, end)) if stop > first else (0, 0)
        for (first, stop), (start, end) in zip(_ranges_read(cuts, window, extent), pairwise(own), strict=True)
    ]


def _partition_above(below: Partition, smoothing: Smoothing) -> Partition:
    window = smoothing.window

    def cuts(of: tuple[int, ...]) -> tuple[int, ...]:
        def reads(output: int) -> tuple[int, int]:
            first = output - window.pad_before
            return first, first + window.size

        return output_bounds(of, window.outputs(of[-1]), reads)

    return Partition(cuts(below.y), cuts(below.x))


def _reads(box: Box, window: Window, shape: MapShape) -> Box:
    """Box of a map that a box of outputs reads."""
    if not box.size:
        return EMPTY_BOX
    rows, columns = (
        (window.reads(first, extent)[0], window.reads(stop - 1, extent)[1])
        for first, stop, extent in zip(box.start, box.stop, (shape.height, shape.width), strict=True)
    )
    return Box((rows[0], columns[0]), (rows[1], columns[1]))
