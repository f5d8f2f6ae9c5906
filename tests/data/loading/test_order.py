"""Orders of images: permutations, and their mixing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotswold.data.loading.order import Buffered, Order, Split, buffer_samples, part_of_rank
from cotswold.data.store.layout import shard_images
from cotswold.geometry import MapShape


@settings(max_examples=200)
@given(
    images=st.integers(1, 400),
    shard=st.integers(1, 50),
    buffer=st.integers(1, 300),
    seed=st.integers(0, 9),
    epoch=st.integers(0, 9),
)
def test_every_order_is_a_permutation_that_depends_on_seed_and_epoch(
    images: int, shard: int, buffer: int, seed: int, epoch: int
) -> None:
    def rows(seed: int, epoch: int, shuffle: bool = True) -> list[int]:
        found: list[int] = Buffered(Split(images, shard, seed, shuffle), buffer).rows(epoch).tolist()
        return found

    assert sorted(rows(seed, epoch)) == list(range(images))
    assert rows(seed, epoch) == rows(seed, epoch)
    assert rows(seed, epoch, shuffle=False) == list(range(images))
    if images > 50 and min(buffer, images) > 20:
        assert rows(seed, epoch) != rows(seed, epoch + 1) != rows(seed + 1, epoch + 1)


@settings(max_examples=200)
@given(
    images=st.integers(1, 400),
    shard=st.integers(1, 50),
    buffer=st.integers(1, 300),
    shuffle=st.booleans(),
)
def test_no_more_images_wait_between_two_shards_than_an_order_says(
    images: int, shard: int, buffer: int, shuffle: bool
) -> None:
    order: Order = Buffered(Split(images, shard, 3, shuffle), buffer)
    read_as = {int(number): turn for turn, number in enumerate(order.shards(0))}
    turns = np.array([read_as[row // shard] for row in order.rows(0).tolist()])
    read = np.maximum.accumulate(turns)  # the last shard that must have been read for each image
    handed = np.arange(images)
    sizes = [len(Split(images, shard, 3).rows_of(int(number))) for number in order.shards(0)]
    before = np.concatenate([[0], np.cumsum(sizes)])[read]  # images in the shards before that one
    assert int((before - handed).max()) <= order.max_waiting_samples <= images


def meeting(order: Order, images: int, batch: int, epoch: int) -> float:
    """Return the fraction of pairs in a batch of one epoch that share a batch of the next one."""
    first, second = np.empty((2, images), np.int64)
    first[order.rows(epoch)] = second[order.rows(epoch + 1)] = np.arange(images) // batch
    together = np.unique(first * images + second, return_counts=True)[1]
    once = np.bincount(first)
    return float((together * (together - 1)).sum() / (once * (once - 1)).sum())


def seldom(shape: MapShape, images: int, batch: int) -> float:
    """Return `meeting` over many seeds, relative to a full shuffle."""
    shard, sample_bytes = shard_images(shape, "float16"), 2 * shape.size
    buffer = buffer_samples(images, shard, sample_bytes)
    found = [meeting(Buffered(Split(images, shard, seed), buffer), images, batch, 0) for seed in range(8)]
    return float(np.mean(found)) / ((batch - 1) / (images - 1))


LARGE = MapShape(3, 200, 200)


@pytest.mark.parametrize("shape", [LARGE, MapShape(3, 96, 96), MapShape(3, 224, 224), MapShape(1, 48, 48)])
def test_images_of_a_batch_meet_again_at_most_twice_as_often_as_after_a_full_shuffle(
    shape: MapShape,
) -> None:
    assert 0.9 < seldom(shape, 20_000, 96) < 1.4


def test_a_buffer_of_half_the_root_doubles_the_chance_to_meet_again_as_derived() -> None:
    images, shard, batch = 20_000, 34, 96
    half = round((shard * images) ** 0.5 / 2)
    found = [meeting(Buffered(Split(images, shard, seed), half), images, batch, 0) for seed in range(5)]
    assert 1.6 < np.mean(found) / ((batch - 1) / (images - 1)) < 2.2


@pytest.mark.parametrize("images", [1, 50, 4500, 20_000, 10_000_000, 10**9])
@pytest.mark.parametrize("shape", [MapShape(1, 1, 1), MapShape(1, 28, 28), LARGE, MapShape(3, 4000, 4000)])
def test_the_buffer_takes_at_most_512_mib(images: int, shape: MapShape) -> None:
    sample_bytes = 2 * shape.size
    buffer = buffer_samples(images, shard_images(shape, "float16"), sample_bytes)
    assert 1 <= buffer <= images
    assert buffer * sample_bytes <= 512 << 20


def test_a_small_set_is_shuffled_as_a_whole() -> None:
    assert buffer_samples(500, 34, 240_000) < 500
    assert buffer_samples(60, 34, 240_000) == 60
    assert buffer_samples(5000, 256, 3136) == 5000


@pytest.mark.parametrize(("samples", "ranks"), [(10, 4), (3, 5), (8, 2), (0, 3)])
def test_uneven_parts_of_ranks_are_all_rows_once(samples: int, ranks: int) -> None:
    parts = [part_of_rank(np.arange(samples), rank, ranks, is_even=False) for rank in range(ranks)]
    assert np.concatenate(parts).tolist() == list(range(samples))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(("samples", "ranks", "each"), [(10, 4, 2), (3, 5, 0), (8, 2, 4)])
def test_even_parts_of_ranks_have_as_many_rows_each(samples: int, ranks: int, each: int) -> None:
    parts = [part_of_rank(np.arange(samples), rank, ranks, is_even=True) for rank in range(ranks)]
    assert np.concatenate(parts).tolist() == list(range(each * ranks))
    assert {len(part) for part in parts} == {each}
