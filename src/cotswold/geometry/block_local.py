"""Block-local connectivity: untied receptive fields, each shared by a 3-D block of neurons.

Knows: the geometry of Coates et al. 2013, section 4.1 and figure 2. Does not know: tensors, values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from cotswold.errors import GeometryError
from cotswold.geometry.box import Box
from cotswold.geometry.window import Window


@dataclass(frozen=True)
class MapShape:
    """The shape of a map: channels, height, width."""

    channels: int
    height: int
    width: int

    def __post_init__(self) -> None:
        if min(self.channels, self.height, self.width) < 1:
            raise GeometryError(f"a map of {self.channels} x {self.height} x {self.width} has nothing in it")

    @property
    def size(self) -> int:
        """Values in one image's map."""
        return self.channels * self.height * self.width

    def __str__(self) -> str:
        return f"{self.channels} x {self.height} x {self.width}"


@dataclass(frozen=True)
class BlockLocal:
    """A local, untied layer: block (by, bx) of neurons sees rows ``by*step_y - low ...`` of the input map.

    A block is ``rows x columns`` positions of the output map with ``depth`` channels; its neurons are ordered
    [row in block][column in block][depth]. ``rows = columns = 1`` is the ordinary untied layer.

    >>> layer = BlockLocal(MapShape(3, 200, 200), Window(20, 4), Window(20, 4), rows=4, columns=4, depth=8)
    >>> layer.grid, str(layer.output), layer.filters_shape
    ((46, 46), '8 x 184 x 184', (46, 46, 20, 60, 128))
    """

    input: MapShape
    y: Window
    x: Window
    rows: int
    columns: int
    depth: int

    def __post_init__(self) -> None:
        if min(self.rows, self.columns, self.depth) < 1:
            raise GeometryError(f"a block of {self.rows} x {self.columns} x {self.depth} neurons is empty")
        for name, window, extent in (("high", self.y, self.input.height), ("wide", self.x, self.input.width)):
            if window.outputs(extent) < 1:
                raise GeometryError(
                    f"a receptive field {window.size} {name} does not fit a map {extent} {name} "
                    f"with padding {window.low} and {window.high}; use a smaller field or a larger map"
                )

    @property
    def grid(self) -> tuple[int, int]:
        """Blocks down and across."""
        return self.y.outputs(self.input.height), self.x.outputs(self.input.width)

    @property
    def output(self) -> MapShape:
        """The map of responses: every block lays its neurons out in space."""
        return MapShape(self.depth, self.grid[0] * self.rows, self.grid[1] * self.columns)

    @property
    def neurons(self) -> int:
        """Neurons in one block."""
        return self.rows * self.columns * self.depth

    @property
    def fan_in(self) -> int:
        """Weights of one neuron, those that meet padding included."""
        return self.y.size * self.x.size * self.input.channels

    @property
    def filters_shape(self) -> tuple[int, int, int, int, int]:
        """``(block_y, block_x, field_y, field_x * channel, neuron)``."""
        return (*self.grid, self.y.size, self.x.size * self.input.channels, self.neurons)

    @property
    def norms_shape(self) -> tuple[int, int, int]:
        """``(block_y, block_x, neuron)``."""
        return (*self.grid, self.neurons)

    @property
    def parameters(self) -> int:
        """The number of filter weights."""
        return prod(self.filters_shape)

    def part(self, blocks: Box) -> tuple[BlockLocal, Box]:
        """A box of blocks (y, x) as a layer of its own, and the box (y, x) of the input map that it is on.

        Its blocks see what they see in the whole layer, padding included. Raises GeometryError for no block.
        """
        if blocks.size == 0 or not Box.whole(self.grid).contains(blocks):
            raise GeometryError(f"{blocks} holds no blocks of a layer with {self.grid}")
        extents = (self.input.height, self.input.width)
        windows, edges = [], []
        for window, extent, first, stop in zip(
            (self.y, self.x), extents, blocks.start, blocks.stop, strict=True
        ):
            low, high = window.skipped(first, extent)[0], window.skipped(stop - 1, extent)[1]
            windows.append(replace(window, low=low, high=high))
            edges.append((window.reads(first, extent)[0], window.reads(stop - 1, extent)[1]))
        (top, bottom), (left, right) = edges
        below = MapShape(self.input.channels, bottom - top, right - left)
        return replace(self, input=below, y=windows[0], x=windows[1]), Box((top, left), (bottom, right))

    def within(self, seen: Box) -> Box:
        """The box of blocks (y, x) that see nothing of the input map outside of a box (y, x) of it."""
        edges = []
        for window, extent, low, high in zip(
            (self.y, self.x), (self.input.height, self.input.width), seen.start, seen.stop, strict=True
        ):
            inside = [
                output
                for output in range(window.outputs(extent))
                if low <= window.reads(output, extent)[0] and window.reads(output, extent)[1] <= high
            ]
            edges.append((inside[0], inside[-1] + 1) if inside else (0, 0))
        (top, bottom), (left, right) = edges
        return Box((top, left), (bottom, right))

    def block_rows(self, first: int, stop: int) -> tuple[BlockLocal, tuple[int, int]]:
        """Rows of blocks ``first .. stop`` as a layer of their own on the whole width of the input map, and
        the rows of it that they are on.

        Its blocks see what they see in the whole layer, padding included.
        """
        height = self.input.height
        rows = self.y.reads(first, height)[0], self.y.reads(stop - 1, height)[1]
        low, high = self.y.skipped(first, height)[0], self.y.skipped(stop - 1, height)[1]
        below = replace(self.input, height=rows[1] - rows[0])
        return replace(self, input=below, y=replace(self.y, low=low, high=high)), rows

    @property
    def product_flops(self) -> int:
        """FLOPs of one product (Wx, W'x or δx') an image: two a weight that meets a real input."""
        rows, columns = self.y.read_by_all(self.input.height), self.x.read_by_all(self.input.width)
        return 2 * rows * columns * self.input.channels * self.neurons
