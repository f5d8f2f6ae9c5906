"""The stacks whose scaling is measured.

Knows: the paper's fields and blocks, the number of blocks of a map. Does not know: tensors, time, ranks'
states.

The work depends on blocks, not on pixels: a map of twice the size has twice the blocks. Pooling and
normalisation keep the map's size, so twice the blocks give twice the responses, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cotswold.geometry import BlockLocal, Grid, MapShape, Smoothing, StackGeometry, Window

STEP_PIXELS = 4


@dataclass(frozen=True)
class Fields:
    """Fields and blocks of a stack, and the numbers of blocks of its measured maps in each direction."""

    name: str
    field: int
    channels: int
    depth: int
    weak: int
    """Blocks of a rank for weak scaling."""
    strong: int
    """Blocks of the map for strong scaling."""
    far: int
    """Blocks of a rank on hosts with links: the number on one of the paper's 64 GPUs."""
    own: int
    """Blocks of the paper's own map."""
    images: int = 96
    first: bool = False
    """True if the input is images, of which every rank reads its own window."""

    def stack(self, rows: int, columns: int) -> StackGeometry:
        """Return the stack with these numbers of blocks."""
        height, width = (self.field + STEP_PIXELS * (count - 1) for count in (rows, columns))
        window, smoothing = Window(self.field, STEP_PIXELS), Smoothing(5, keep=True)
        layer = BlockLocal(MapShape(self.channels, height, width), window, window, 4, 4, self.depth)
        return StackGeometry(layer, smoothing, smoothing)

    def times(self, grid: Grid, blocks: int) -> StackGeometry:
        """Return the stack of which each rank of a grid has ``blocks`` x ``blocks``."""
        return self.stack(blocks * grid.rows, blocks * grid.columns)


PAPER = (
    Fields("20 x 20 x 3, blocks 4 x 4 x 8", 20, 3, 8, weak=12, strong=16, far=6, own=46, first=True),
    Fields("20 x 20 x 8, blocks 4 x 4 x 8", 20, 8, 8, weak=12, strong=12, far=6, own=46),
    Fields("32 x 32 x 18, blocks 4 x 4 x 18", 32, 18, 18, weak=5, strong=6, far=5, own=36),
)
QUICK = tuple(
    replace(one, name=f"{one.name}, little", weak=2, strong=4, far=2, own=4, images=16) for one in PAPER[:2]
)
"""Small stacks to try the command."""
