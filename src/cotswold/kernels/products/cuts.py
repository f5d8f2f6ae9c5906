"""Cuts of rows, lanes and terms of a product into tiles, ranges of tiles, and k-blocks.

Knows: tiles, vectors, the maximum length of a chain of sums. Does not know: layers, offsets of operands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cotswold.kernels.microkernels.kinds import Tile, row_block_sizes
from cotswold.kernels.products.plan import Blocking, Tables

K_BLOCK = 256
"""Maximum k summed in one chain: the values of a k-block fit the caches."""
IMAGES_K_BLOCK = 384
"""The same if k are images: common batches are one k-block, and gradients are written once."""

LINE = 16
"""Elements of float32 in a cache line."""


def row_cuts(rows: int, tile: Tile) -> Iterator[tuple[int, int]]:
    """Yield ``(first row, index of the height)``: as many full tiles as fit, then smaller ones."""
    first, sizes = 0, row_block_sizes(tile)
    for number, height in enumerate(sizes):
        while rows - first >= height:
            yield first, number
            first += height


def lane_cuts(count: int, blocking: Blocking) -> Iterator[tuple[int, int, int]]:
    """Yield ``(first lane, variant, lanes in the last vector)``: tiles of nearly equal width."""
    vectors = -(-count // blocking.lanes)
    tiles = -(-vectors // blocking.tile.vectors)
    first = 0
    for number in range(tiles):
        width = vectors // tiles + (number < vectors % tiles)
        last = min(count - (first + width - 1) * blocking.lanes, blocking.lanes)
        full = width == blocking.tile.vectors and last == blocking.lanes
        yield first * blocking.lanes, blocking.tile.vectors if full else width - 1, last
        first += width


def split_evenly(total: int, most: int = K_BLOCK) -> Iterator[tuple[int, int]]:
    """Yield ``(first, length)`` of nearly equal parts of at most ``most``."""
    parts = -(-total // most)
    first = 0
    for number in range(parts):
        length = total // parts + (number < total % parts)
        yield first, length
        first += length


def k_block_of(total: int, most: int = K_BLOCK) -> int:
    """Entries of a k-block, if entries are stretches of ``total``; shorter ones at borders change nothing."""
    longest = max((length for _, length in split_evenly(total, most)), default=1)
    return max(1, most // longest)


def cut_tiles(
    tables: list[tuple[int, int, int]], made: Sequence[tuple[int, int, int]], parts: int
) -> list[tuple[int, int]]:
    """Append tiles; cut their range into at most ``parts`` ranges ``(first, count)``."""
    first = len(tables)
    tables.extend(made)
    parts = max(1, min(parts, len(made)))
    return [(first + start, length) for start, length in split_evenly(len(made), -(-len(made) // parts))]


def parts_per_block(blocks: int, blocking: Blocking) -> int:
    """Least number of tasks into which a block is cut."""
    return max(1, blocking.tasks // max(blocks, 1))


def round_up(count: int, of: int) -> int:
    """Return the least multiple of ``of`` that is at least ``count``."""
    return -(-count // of) * of


def odd_lines(count: int) -> int:
    """Return a stride of at least ``count`` elements that is an odd number of lines of float32.

    Rows that are a power of 2 apart share a few sets of a cache. The line is a multiple of every vector.
    """
    return (-(-count // LINE) | 1) * LINE


def lane_ranges(
    tables: Tables, count: int, blocking: Blocking, parts: int
) -> list[tuple[int, int, int, int]]:
    """Cut lanes into ``(first tile, tiles, first lane, lanes)``; tiles count from a part's first lane."""
    vectors = -(-count // blocking.lanes)
    widest = -(-vectors // parts) if parts > 1 else vectors
    if widest < vectors:  # whole tiles, if there are several
        widest = max(1, widest // blocking.tile.vectors) * blocking.tile.vectors
    found = []
    for first in range(0, vectors, widest):
        lane = first * blocking.lanes
        lanes = min(widest * blocking.lanes, count - lane)
        ((tile, tiles),) = cut_tiles(tables.lane_tiles, list(lane_cuts(lanes, blocking)), 1)
        found.append((tile, tiles, lane, lanes))
    return found
