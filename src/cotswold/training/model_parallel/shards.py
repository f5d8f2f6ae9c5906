"""The ranks' parts of each shard, and the rank that pulls and pushes it.

Knows: boxes of parameters by rank, shards of the flat vector, as integers. Does not know: values, how parts
are sent.

A rank's parts are consecutive in its vector. A shard has whole rows, that is a slab of a parameter; a rank's
part of it is a box, which is one range of the rank's vector.

    the parameter                            rank that pulls and pushes its shard
    replicated on every rank                 the first rank
    partitioned, one rank has most           that rank
    partitioned, several have the most       the one of these with the fewest values assigned so far
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

from cotswold.geometry import Box
from cotswold.wire import Shard


@dataclass(frozen=True)
class Piece:
    """A rank's part of a shard."""

    box_in_shard: Box
    """The part's box in the shard."""
    start: int
    """The part's start in the rank's vector."""
    stop: int


@dataclass(frozen=True)
class ShardParts:
    """The distribution of one shard over ranks."""

    shape: tuple[int, ...]
    """The shape of the slab."""
    rank: int
    """The rank that pulls and pushes the shard."""
    is_whole: bool
    """True if every rank has all of it."""
    pieces: Mapping[int, Piece]
    """The parts by rank; a rank without a part is missing."""


def parts_of_shards(
    shapes: Mapping[str, tuple[int, ...]], boxes: Sequence[Sequence[Box]], shards: Sequence[Shard]
) -> Mapping[int, ShardParts]:
    """Return the parts of each shard, by shard number.

    ``shapes`` are those of the parameters by name, in the order of the flat vector; ``boxes`` are each rank's
    boxes of each parameter.

    >>> boxes = [[Box((0, 0), (3, 2))], [Box((3, 0), (4, 2))]]  # three rows of four, and one
    >>> shards = [Shard(0, "a", 0, 4, "w", 0), Shard(1, "a", 4, 8, "w", 1)]
    >>> for parts in parts_of_shards({"w": (4, 2)}, boxes, shards).values():
    ...     print(parts.rank, {rank: (piece.start, piece.stop) for rank, piece in parts.pieces.items()})
    0 {0: (0, 4)}
    1 {0: (4, 6), 1: (0, 2)}
    """
    names = list(shapes)
    sizes = [prod(shape) for shape in shapes.values()]
    starts = dict(zip(names, accumulate(sizes, initial=0), strict=False))
    own_starts = [list(accumulate((box.size for box in of_rank), initial=0)) for of_rank in boxes]
    load = [0] * len(boxes)
    found = {}
    for shard in shards:
        index, shape = names.index(shard.tensor), shapes[shard.tensor] or (1,)
        slab = _slab(shard, starts[shard.tensor], shape)
        pieces = {}
        for rank, of_rank in enumerate(boxes):
            box = of_rank[index] if shapes[shard.tensor] else Box((0,), (1,))
            common = box.intersect(slab)
            if common.size:
                start = own_starts[rank][index] + (common.start[0] - box.start[0]) * prod(box.shape[1:])
                pieces[rank] = Piece(common.relative_to(slab), start, start + common.size)
        is_whole = all(of_rank[index] == Box.whole(shapes[shard.tensor]) for of_rank in boxes)
        rank = 0 if is_whole else _least_loaded_rank(pieces, load)
        load[rank] += shard.stop - shard.start
        found[shard.number] = ShardParts(slab.shape, rank, is_whole, pieces)
    return found


def _slab(shard: Shard, start: int, shape: tuple[int, ...]) -> Box:
    columns = prod(shape[1:])
    rows = (shard.start - start) // columns, (shard.stop - start) // columns
    return Box((rows[0], *(0 for _ in shape[1:])), (rows[1], *shape[1:]))


def _least_loaded_rank(pieces: Mapping[int, Piece], load: Sequence[int]) -> int:
    most = max(piece.stop - piece.start for piece in pieces.values())
    able = [rank for rank, piece in pieces.items() if piece.stop - piece.start == most]
    return min(able, key=lambda rank: (load[rank], rank))
