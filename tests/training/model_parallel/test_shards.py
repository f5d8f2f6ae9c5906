"""Each rank's part of each shard: nothing is duplicated or missing."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cotswold.geometry import Box
from cotswold.geometry.partition import chunk_bounds
from cotswold.shards.runtime.layout import split_into_shards
from cotswold.shards.runtime.work import TensorSlot
from cotswold.training.model_parallel.shards import parts_of_shards
from cotswold.wire import Shard

extents = st.integers(1, 9)


@st.composite
def cut_parameters(draw: st.DrawFn) -> tuple[dict[str, tuple[int, ...]], list[list[Box]]]:
    """Draw shapes by name, and each rank's part of each parameter: all, or a range along a dimension."""
    shapes: dict[str, tuple[int, ...]] = {}
    ranks = draw(st.integers(1, 4))
    boxes: list[list[Box]] = [[] for _ in range(ranks)]
    for index in range(draw(st.integers(1, 4))):
        shape = tuple(draw(st.lists(extents, max_size=3)))
        shapes[f"tensor {index}"] = shape
        dim = draw(st.integers(-1, len(shape) - 1))
        for rank, of_rank in enumerate(boxes):
            start, stop = [0] * len(shape), list(shape)
            if dim >= 0:
                cuts = chunk_bounds(shape[dim], ranks)
                start[dim], stop[dim] = cuts[rank], cuts[rank + 1]
            of_rank.append(Box(tuple(start), tuple(stop)))
    return shapes, boxes


def shards_over(shapes: dict[str, tuple[int, ...]], shard_bytes: int) -> tuple[Shard, ...]:
    return split_into_shards(
        [TensorSlot.of_shape(*each) for each in shapes.items()], 8, shard_bytes, ["a", "b"]
    )


@given(cut_parameters(), st.integers(8, 400))
def test_the_pieces_of_a_shard_are_its_numbers_each_where_the_rank_has_it(
    cut: tuple[dict[str, tuple[int, ...]], list[list[Box]]], shard_bytes: int
) -> None:
    shapes, boxes = cut
    whole = np.arange(sum(map(prod, shapes.values())), dtype=np.float64)
    own = [
        np.concatenate([tensor[box.slices].reshape(-1) for tensor, box in zip(tensors, of_rank, strict=True)])
        for of_rank in boxes
        for tensors in [split(whole, shapes)]
    ]
    shards = shards_over(shapes, shard_bytes)
    found = parts_of_shards(shapes, boxes, shards)
    taken: list[list[int]] = [[] for _ in boxes]
    for shard in shards:
        parts = found[shard.number]
        slab = np.full(parts.shape, np.nan)
        for rank, piece in parts.pieces.items():
            assert parts.is_whole or np.isnan(slab[piece.box_in_shard.slices]).all(), "nobody else has it"
            slab[piece.box_in_shard.slices] = own[rank][piece.start : piece.stop].reshape(
                piece.box_in_shard.shape
            )
            taken[rank] += range(piece.start, piece.stop)
        np.testing.assert_array_equal(slab.reshape(-1), whole[shard.start : shard.stop])
        assert parts.rank in parts.pieces and not (parts.is_whole and parts.rank)
        sizes = {rank: piece.stop - piece.start for rank, piece in parts.pieces.items()}
        assert parts.is_whole or sizes[parts.rank] == max(sizes.values()), "least travels between ranks"
    assert [sorted(each) for each in taken] == [list(range(len(each))) for each in own]


def split(whole: np.ndarray, shapes: dict[str, tuple[int, ...]]) -> list[np.ndarray]:
    ends = np.cumsum([prod(shape) for shape in shapes.values()])
    return [
        each.reshape(shape) for each, shape in zip(np.split(whole, ends[:-1]), shapes.values(), strict=True)
    ]


def test_shards_of_which_ranks_have_as_much_are_dealt_to_all_of_them() -> None:
    shapes: dict[str, tuple[int, ...]] = {"weight": (8, 6)}
    strips = [[Box((0, 0), (8, 3))], [Box((0, 3), (8, 6))]]
    shards = shards_over(shapes, 6 * 8 * 2)
    assert [each.rank for each in parts_of_shards(shapes, strips, shards).values()] == [0, 1, 0, 1]
