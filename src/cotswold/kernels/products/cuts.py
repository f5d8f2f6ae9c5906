"""How rows, lanes and terms of a product are cut: into tiles, ranges of tiles, sections.

Knows: tiles, vectors, how long a chain of sums may be. Does not know: layers, where operands lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cotswold.kernels.microkernels.tile import Tile, heights
from cotswold.kernels.products.plan import Grain, Tables

SECTION = 256
"""The most k that are summed in one chain: what a section of them reads fits the caches."""
IMAGES_SECTION = 384
"""The same where k are images: common batches are one section, after which gradients are written once."""


def row_cuts(rows: int, tile: Tile) -> Iterator[tuple[int, int]]:
    """``(first row, number of the height)``: as many full tiles as there are, then smaller ones."""
    first, sizes = 0, heights(tile)
    for number, height in enumerate(sizes):
        while rows - first >= height:
            yield first, number
            first += height


def lane_cuts(count: int, grain: Grain) -> Iterator[tuple[int, int, int]]:
    """``(first lane, variant, lanes in the last vector)``: tiles of as equal a width as can be."""
    vectors = -(-count // grain.lanes)
    tiles = -(-vectors // grain.tile.vectors)
    first = 0
    for number in range(tiles):
        width = vectors // tiles + (number < vectors % tiles)
        last = min(count - (first + width - 1) * grain.lanes, grain.lanes)
        full = width == grain.tile.vectors and last == grain.lanes
        yield first * grain.lanes, grain.tile.vectors if full else width - 1, last
        first += width


def stretches(total: int, most: int = SECTION) -> Iterator[tuple[int, int]]:
    """``(first, length)`` of nearly equal parts of at most ``most``."""
    parts = -(-total // most)
    first = 0
    for number in range(parts):
        length = total // parts + (number < total % parts)
        yield first, length
        first += length


def section_of(total: int, most: int = SECTION) -> int:
    """Entries of a section, where stretches of ``total`` are entries; fewer at borders change nothing."""
    longest = max((length for _, length in stretches(total, most)), default=1)
    return max(1, most // longest)


def with_next(
    entries: Sequence[tuple[int, int, int]], onward: int, distance: int = 1
) -> list[tuple[int, int, int, int]]:
    """Entries, each with the way in A to the one so far behind it; after the last the first, further on."""
    count = len(entries)
    found = []
    for number, (a, b, k) in enumerate(entries):
        after = number + distance
        place = entries[after][0] if after < count else entries[number % distance % count][0] + onward
        found.append((a, b, k, place - a))
    return found


def cut_tiles(
    tables: list[tuple[int, int, int]], made: Sequence[tuple[int, int, int]], parts: int
) -> list[tuple[int, int]]:
    """Append tiles, and cut their range into at most ``parts`` ranges ``(first, count)``."""
    first = len(tables)
    tables.extend(made)
    parts = max(1, min(parts, len(made)))
    return [(first + start, length) for start, length in stretches(len(made), -(-len(made) // parts))]


def parts_of(blocks: int, grain: Grain) -> int:
    """Into how many tasks a block is cut at least."""
    return max(1, grain.tasks // max(blocks, 1))


def round_up(count: int, of: int) -> int:
    """The least multiple that is not below a count."""
    return -(-count // of) * of


def lane_ranges(tables: Tables, count: int, grain: Grain, parts: int) -> list[tuple[int, int, int, int]]:
    """Lanes cut into ``(first tile, tiles, first lane, lanes)``; tiles count from a part's first lane."""
    vectors = -(-count // grain.lanes)
    widest = -(-vectors // parts) if parts > 1 else vectors
    if widest < vectors:  # whole tiles, where there are several
        widest = max(1, widest // grain.tile.vectors) * grain.tile.vectors
    found = []
    for first in range(0, vectors, widest):
        lane = first * grain.lanes
        lanes = min(widest * grain.lanes, count - lane)
        ((tile, tiles),) = cut_tiles(tables.lane_tiles, list(lane_cuts(lanes, grain)), 1)
        found.append((tile, tiles, lane, lanes))
    return found
