"""Geometry of a stack: local filters, pooling, contrast normalisation (Coates et al. 2013, section 3).

Knows: the maps of a stack, its counts of weights, FLOPs and bytes. Does not know: tensors, values.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.errors import GeometryError
from cotswold.geometry.block_local import BlockLocal, MapShape
from cotswold.geometry.window import Window


@dataclass(frozen=True)
class Smoothing:
    """A square window over a map at stride 1: pooling, or one step of contrast normalisation.

    Args:
        size: Side of the window; 1 keeps the shape.
        keep: Pad with zeros so that the map keeps its size; else the window must lie inside the map.
    """

    size: int
    keep: bool = False

    @property
    def window(self) -> Window:
        """Window along either axis."""
        return Window.same_padding(self.size) if self.keep else Window(self.size)

    def output(self, shape: MapShape) -> MapShape:
        """Return the shape of the output map.

        Args:
            shape: Shape of the input map.

        Raises:
            GeometryError: The window does not fit the map.
        """
        height, width = self.window.outputs(shape.height), self.window.outputs(shape.width)
        if min(height, width) < 1:
            raise GeometryError(
                f"a window of {self.size} does not fit a map of {shape}; use a smaller window, or "
                'pool_padding = "same"'
            )
        return MapShape(shape.channels, height, width)


@dataclass(frozen=True)
class StackGeometry:
    """Filters, then L2 pooling, then contrast normalisation in two steps (subtractive and divisive).

    Args:
        filters: Geometry of the filters.
        pool: Window of pooling.
        norm: Window of each step of normalisation; size 1 for none.
    """

    filters: BlockLocal
    pool: Smoothing
    norm: Smoothing

    @property
    def input(self) -> MapShape:
        """Shape of the map that the stack reads."""
        return self.filters.input

    @property
    def responses(self) -> MapShape:
        """Shape of the map of filter responses."""
        return self.filters.output

    @property
    def pooled(self) -> MapShape:
        """Shape of the map of pooling units."""
        return self.pool.output(self.responses)

    @property
    def output(self) -> MapShape:
        """Shape of the map that the next stack reads."""
        if self.norm.size == 1:
            return self.pooled
        return self.norm.output(self.norm.output(self.pooled))

    @property
    def forward_flops(self) -> int:
        """FLOPs of one image's responses, by the paper's count: the product alone."""
        return self.filters.product_flops

    @property
    def update_flops(self) -> int:
        """FLOPs per image of an update: Wx, W'h, W r and two outer products."""
        return 5 * self.filters.product_flops
