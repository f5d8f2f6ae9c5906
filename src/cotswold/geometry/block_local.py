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
    """Shape of a map.

    Args:
        channels: Number of channels, at least 1.
        height: Rows, at least 1.
        width: Columns, at least 1.

    Raises:
        GeometryError: An extent below 1.
    """

    channels: int
    height: int
    width: int

    def __post_init__(self) -> None:
        if min(self.channels, self.height, self.width) < 1:
            raise GeometryError(f"a map's extents must be at least 1, got {self}")

    @property
    def size(self) -> int:
        """Values in one image's map."""
        return self.channels * self.height * self.width

    def __str__(self) -> str:
        return f"{self.channels} x {self.height} x {self.width}"


@dataclass(frozen=True)
class BlockLocal:
    """A local, untied layer: block (by, bx) of neurons reads rows ``by*step_y - pad_before ...`` of a map.

    A block is ``rows x columns`` positions of the output map with ``depth`` channels; its neurons are ordered
    [row in block][column in block][depth]. ``rows = columns = 1`` is the ordinary untied layer.

    Args:
        input: Shape of the input map.
        y: Window of the receptive fields along y.
        x: Window of the receptive fields along x.
        rows: Rows of a block.
        columns: Columns of a block.
        depth: Channels of a block, and of the output map.

    Raises:
        GeometryError: An empty block, or a window that does not fit the map.

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
            raise GeometryError(
                f"rows, columns and depth of a block must be at least 1, got {self.rows} x {self.columns} x "
                f"{self.depth}"
            )
        for name, window, extent in (("high", self.y, self.input.height), ("wide", self.x, self.input.width)):
            if window.outputs(extent) < 1:
                raise GeometryError(
                    f"a receptive field {window.size} {name} does not fit a map {extent} {name} "
                    f"with padding {window.pad_before} and {window.pad_after}; use a smaller field or a "
                    "larger map"
                )

    @property
    def grid(self) -> tuple[int, int]:
        """Number of blocks down and across."""
        return self.y.outputs(self.input.height), self.x.outputs(self.input.width)

    @property
    def output(self) -> MapShape:
        """Shape of the output map, which holds the neurons of every block in space."""
        return MapShape(self.depth, self.grid[0] * self.rows, self.grid[1] * self.columns)

    @property
    def neurons(self) -> int:
        """Neurons in one block."""
        return self.rows * self.columns * self.depth

    @property
    def fan_in(self) -> int:
        """Weights of one neuron, including those that read padding."""
        return self.y.size * self.x.size * self.input.channels

    @property
    def filters_shape(self) -> tuple[int, int, int, int, int]:
        """Shape of the filters, ``(block_y, block_x, field_y, field_x * channel, neuron)``."""
        return (*self.grid, self.y.size, self.x.size * self.input.channels, self.neurons)

    @property
    def norms_shape(self) -> tuple[int, int, int]:
        """Shape of one value per filter, ``(block_y, block_x, neuron)``."""
        return (*self.grid, self.neurons)

    @property
    def parameters(self) -> int:
        """Number of filter weights."""
        return prod(self.filters_shape)

    def part(self, blocks: Box) -> tuple[BlockLocal, Box]:
        """Return a box of blocks as a separate layer, and the box of the input map that it reads.

        The blocks read the same as in the whole layer, padding included.

        Args:
            blocks: Box ``(y, x)`` of blocks.

        Returns:
            The layer, and the box ``(y, x)`` of its input in this layer's input map.

        Raises:
            GeometryError: No blocks, or blocks outside the layer.
        """
        if blocks.size == 0 or not Box.whole(self.grid).contains(blocks):
            raise GeometryError(f"{blocks} is empty or outside the {self.grid} blocks of the layer")
        extents = (self.input.height, self.input.width)
        windows, edges = [], []
        for window, extent, first, stop in zip(
            (self.y, self.x), extents, blocks.start, blocks.stop, strict=True
        ):
            low, high = window.padding_read(first, extent)[0], window.padding_read(stop - 1, extent)[1]
            windows.append(replace(window, pad_before=low, pad_after=high))
            edges.append((window.reads(first, extent)[0], window.reads(stop - 1, extent)[1]))
        (top, bottom), (left, right) = edges
        below = MapShape(self.input.channels, bottom - top, right - left)
        return replace(self, input=below, y=windows[0], x=windows[1]), Box((top, left), (bottom, right))

    def blocks_within(self, seen: Box) -> Box:
        """Return the box ``(y, x)`` of blocks that read only inside a box ``(y, x)`` of the input map.

        Args:
            seen: Box of the input map.
        """
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
        """Return rows of blocks ``first .. stop`` as a separate layer, and the rows of the map that it reads.

        The layer has the whole width of the input map. Its blocks read the same as in the whole layer,
        padding included.

        Args:
            first: First row of blocks.
            stop: End of the rows of blocks.
        """
        height = self.input.height
        rows = self.y.reads(first, height)[0], self.y.reads(stop - 1, height)[1]
        low, high = self.y.padding_read(first, height)[0], self.y.padding_read(stop - 1, height)[1]
        below = replace(self.input, height=rows[1] - rows[0])
        return replace(self, input=below, y=replace(self.y, pad_before=low, pad_after=high)), rows

    @property
    def product_flops(self) -> int:
        """FLOPs of one product (Wx, W'x or δx') per image: two for each weight that reads a real input."""
        rows, columns = self.y.read_by_all(self.input.height), self.x.read_by_all(self.input.width)
        return 2 * rows * columns * self.input.channels * self.neurons
