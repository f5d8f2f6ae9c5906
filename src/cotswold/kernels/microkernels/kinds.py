"""Kinds of product kernels and sizes of their tiles: what a plan must know of its kernel.

Knows: the work of a kernel around its tiles, the heights of tiles. Does not know: code, plans.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.kernels.microkernels.activation import ACTIVATIONS


@dataclass(frozen=True)
class Tile:
    """Size of a tile, or of the largest tile of a kernel: rows and vectors."""

    rows: int
    vectors: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.vectors}"


@dataclass(frozen=True)
class TileConfig:
    """Layout of A, and the epilogue of a tile.

    ``a_rows_adjacent``: rows of A are contiguous and k is a stride apart; else k is contiguous.
    ``epilogue``: the activation of the complete sums, after a bias per row is added; '' for none.
    """

    a_rows_adjacent: bool
    epilogue: str = ""


AMX_TILE = Tile(32, 2)
"""The tile of AMX, whose kernel computes any number of rows up to it."""


def row_block_sizes(tile: Tile) -> tuple[int, ...]:
    """Heights of a kernel's tiles, its own and smaller ones, so that few tiles cover any number of rows."""
    if tile == AMX_TILE:
        return tuple(range(tile.rows, 0, -1))
    return tuple(sorted({tile.rows, *(h for h in (8, 4, 2, 1) if h < tile.rows)}, reverse=True))


@dataclass(frozen=True)
class ProductKind:
    """Work of a kernel around its tiles.

    ``a_rows_adjacent``, ``epilogue``: see `TileConfig`. ``panels``: if the job says so, A is packed once
    per k-block, which is then one entry. ``pack_b``: first pack B into scratch by transposing the neurons of
    one map, or of two if the job has a second B. ``unpack_c``: C goes to scratch and is transposed to its
    map afterwards. ``update``: C is a gradient in scratch that updates the filters.
    """

    name: str
    a_rows_adjacent: bool
    pack_b: bool = False
    unpack_c: bool = False
    update: bool = False
    epilogue: str = ""
    panels: bool = False

    @property
    def tile_config(self) -> TileConfig:
        """Layout of its tiles."""
        return TileConfig(self.a_rows_adjacent, self.epilogue)


PRODUCT = ProductKind("product", a_rows_adjacent=True, panels=True)
PRODUCT_SMALL_BATCH = ProductKind("product_small_batch", a_rows_adjacent=True, unpack_c=True)
ADJOINT = ProductKind("adjoint", a_rows_adjacent=False)
OUTER = ProductKind("outer", a_rows_adjacent=False, pack_b=True)
STEP = ProductKind("step", a_rows_adjacent=False, pack_b=True, update=True)
PRODUCT_WITH_EPILOGUE = {
    name: ProductKind(f"product_{name}", a_rows_adjacent=True, epilogue=name, panels=True)
    for name in ACTIVATIONS
}
KINDS = {
    kind.name: kind
    for kind in (PRODUCT, PRODUCT_SMALL_BATCH, ADJOINT, OUTER, STEP, *PRODUCT_WITH_EPILOGUE.values())
}
