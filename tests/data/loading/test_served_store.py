"""Batches of a data server: equal to a reader's, from a cache within its bound."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from mmap import PAGESIZE
from pathlib import Path

import numpy as np
import pytest
import torch

from cotswold.data import Reader, Store
from cotswold.data.augment import Augmentation
from cotswold.data.loading.batching import Batch
from cotswold.data.loading.order import Buffered, Rows, Split
from cotswold.data.loading.served_store import (
    DatasetInfo,
    DatasetView,
    ServedStore,
    augmentation_to_json,
    needed_cache_bytes,
)
from cotswold.data.loading.shard_cache import ShardCache, Shards
from cotswold.data.loading.shuffle_buffer import Epoch
from cotswold.errors import UserError
from cotswold.geometry import Box

VARIED = Augmentation.of([{"name": "rotation", "degrees": 20.0}, {"name": "flip", "horizontal": 0.5}])


def made(work: ServedStore, view: str, epoch: int, rows: Rows) -> Batch:
    """Return one batch."""
    samples, labels = work.batches(view, epoch, rows[None])
    return samples[0], labels[0]


def served(store: Store, view: DatasetView, batch: int, cache_bytes: int = 1 << 20) -> list[torch.Tensor]:
    """Return two epochs in the order of a reader with seed 3, from a data server's work."""
    work = ServedStore(store, cache_bytes)
    order = Buffered(
        Split(store.splits["train"], store.shard("train"), 3), DatasetInfo.of(store).splits["train"].buffer
    )
    found: list[torch.Tensor] = []
    for number in range(2):
        rows = order.rows(number)[: store.splits["train"] // batch * batch]
        for each in Epoch(number, rows, batch).batches():
            found += made(work, str(view), number, each)
    return found


@pytest.mark.parametrize("box", [None, Box((2, 3), (10, 9))])
@pytest.mark.parametrize("varying", [None, VARIED])
def test_a_data_server_makes_what_a_reader_makes(
    store: Store, varying: Augmentation | None, box: Box | None
) -> None:
    reader = Reader(store, "train", 25, seed=3, augmentation=varying, box=box)
    expected = [each for _ in range(2) for pair in reader for each in pair]
    reader.close()
    view = DatasetView("train", 3, box, augmentation_to_json(varying))
    found = served(store, DatasetView.parsed(str(view)), 25)
    assert len(found) == len(expected) == 2 * 2 * (210 // 25)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other) and one.stride() == other.stride()


def test_terms_come_back_from_their_text(store: Store) -> None:
    assert DatasetInfo.parsed(str(DatasetInfo.of(store))) == DatasetInfo.of(store)
    with pytest.raises(UserError, match="another version"):
        DatasetInfo.parsed('{"store": 3}')


@pytest.mark.parametrize(
    ("view", "epoch", "rows", "why"),
    [
        (str(DatasetView("train")), 0, [210], "which has 210"),
        (str(DatasetView("train")), 0, [-1], "which has 210"),
        (str(DatasetView("train")), 0, [], "a batch of 0 rows"),
        (str(DatasetView("train")), -1, [0], "of epoch -1"),
        (str(DatasetView("nowhere")), 0, [0], "no split 'nowhere'"),
        ("no JSON", 0, [0], "is not a view"),
        (json.dumps(["train", 0]), 0, [0], "is not a view"),
        (json.dumps(["train", 0, [[0], [3]], "", ""]), 0, [0], "is not a window"),
        (str(DatasetView("train", augmentation_json='[{"name": "spin"}]')), 0, [0], "spin"),
        (str(DatasetView("train", augmentation_json="{}")), 0, [0], "is not a list of transforms"),
        (str(DatasetView("train", store="sounds")), 0, [0], "of the store sounds were requested"),
    ],
)
def test_what_is_not_there_is_refused(store: Store, view: str, epoch: int, rows: list[int], why: str) -> None:
    with pytest.raises(UserError, match=why):
        made(ServedStore(store, 1 << 20), view, epoch, np.array(rows, np.int64))


def test_a_batch_that_is_too_long_for_a_message_is_refused_before_it_is_made(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = 4 * store.shape.size
    monkeypatch.setattr("cotswold.data.loading.served_store.BATCH_BYTES", 20 * each)
    work = ServedStore(store, 1 << 20)
    assert len(made(work, str(DatasetView("train")), 0, np.arange(20))[0]) == 20
    before = work.cache.misses + work.cache.hits
    with pytest.raises(
        UserError, match=f"21 samples of {each} bytes is too large .* take at most 20 samples"
    ):
        made(work, str(DatasetView("train")), 0, np.arange(21))
    assert work.cache.misses + work.cache.hits == before
    small = DatasetView("train", box=Box((0, 0), (2, 2)))
    assert len(made(work, str(small), 0, np.arange(21))[0]) == 21


def test_a_view_does_not_have_a_module_imported(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unasked.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    view = str(DatasetView("train", augmentation_json='[{"name": "custom", "function": "unasked:anything"}]'))
    with pytest.raises(UserError, match="only if they were started with them"):
        made(ServedStore(store, 1 << 20), view, 0, np.array([0]))
    for text in ("{}", "[3]", '"own"', "no JSON", "[{}]"):
        with pytest.raises(UserError, match="is not a list of transforms"):
            made(
                ServedStore(store, 1 << 20),
                str(DatasetView("train", augmentation_json=text)),
                0,
                np.array([0]),
            )


def test_the_cache_of_a_store_is_hit_and_stays_within_its_bound(
    plain_store: Callable[..., Store], small_shards: None
) -> None:
    store = plain_store(96)
    rows, bound = np.arange(96), 3 * PAGESIZE
    small, large = ServedStore(store, bound), ServedStore(store, 1 << 20)
    for _ in range(3):
        for work in (small, large):
            samples, _ = made(work, str(DatasetView("train")), 0, rows)
            assert torch.equal(samples, torch.from_numpy(store.read("train", 0, 96)))
    assert (large.cache.misses, large.cache.hits) == (96, 192)
    assert small.cache.peak_bytes == bound
    assert (small.cache.misses, small.cache.hits) == (288, 0), "each was let go before it was wanted again"


def test_a_cache_of_what_is_needed_reads_few_shards_twice_and_a_smaller_one_many(
    plain_store: Callable[..., Store], small_shards: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cotswold.data.loading.order._LEAST_BYTES", 24 * 40)
    store = plain_store(480)
    needed = needed_cache_bytes(store)
    assert 40 // 16 * PAGESIZE <= needed < 480 // 16 * PAGESIZE
    shards = -(-480 // store.shard("train"))
    reads = []
    for cache in (needed, needed // 2):
        work = ServedStore(store, cache)
        order = Buffered(Split(480, store.shard("train"), 0), DatasetInfo.of(store).splits["train"].buffer)
        for row in order.rows(0):
            made(work, str(DatasetView("train")), 0, np.array([row]))
        reads.append(work.cache.misses)
    assert reads[0] < 1.5 * shards < reads[1]


SHARDS = Shards("train", None, 11 * 10 - 3, 10, (2, 3), "<u2")
"""Eleven shards of a page each, the last one short."""


def read_shard(start: int, stop: int) -> np.ndarray:
    """Return samples whose values are their rows."""
    return np.arange(start, stop, dtype=np.uint16)[:, None, None] + np.zeros((2, 3), np.uint16)


def assert_are(found: np.ndarray, rows: np.ndarray) -> None:
    assert found.dtype == np.uint16 and found.shape == (len(rows), 2, 3)
    assert np.array_equal(found, rows[:, None, None] + np.zeros((2, 3), np.uint16))


@pytest.mark.parametrize("slots", [0, 1, 3, 100])
def test_rows_come_in_their_order_from_a_cache_of_any_size_whoever_asks(slots: int) -> None:
    cache = ShardCache(slots * PAGESIZE)
    windows = [SHARDS, replace(SHARDS, box=Box((0, 0), (2, 3))), replace(SHARDS, split="test", samples=31)]
    seen: list[int] = []

    def ask(seed: int) -> None:
        shards = windows[seed % 3]
        rows = np.random.default_rng(seed).integers(0, shards.samples, 1 + seed % 20)
        assert_are(cache.rows(shards, rows, read_shard), rows)
        seen.append(cache.bytes)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(ask, range(600)))
    assert cache.hits + cache.misses == sum(1 + seed % 20 for seed in range(600))
    assert max(seen) <= cache.peak_bytes <= cache.bound_bytes
    assert cache.peak_bytes == min(slots, 26) * PAGESIZE and (cache.hits > 0) == (slots > 0)


def test_a_shard_that_many_want_is_read_once() -> None:
    cache, reads, gate = ShardCache(1 << 20), [], threading.Event()

    def read(start: int, stop: int) -> np.ndarray:
        reads.append(start)
        gate.wait(10)
        return read_shard(start, stop)

    with ThreadPoolExecutor(4) as threads:
        found = [threads.submit(cache.rows, SHARDS, np.array([25, 21]), read) for _ in range(4)]
        gate.set()
        for each in found:
            assert_are(each.result(10), np.array([25, 21]))
    assert reads == [20]


def test_a_read_that_fails_leaves_no_trace_and_the_next_one_tries_again() -> None:
    cache = ShardCache(2 * PAGESIZE)

    def fail(start: int, stop: int) -> np.ndarray:
        raise UserError("damaged")

    for _ in range(20):
        with pytest.raises(UserError, match="damaged"):
            cache.rows(SHARDS, np.array([3]), fail)
    assert cache.bytes == 0
    assert_are(cache.rows(SHARDS, np.array([3]), read_shard), np.array([3]))


def test_what_was_used_longest_ago_goes_first_and_the_too_large_is_not_kept() -> None:
    cache = ShardCache(2 * PAGESIZE)
    for row in (10, 20, 10, 30):
        cache.rows(SHARDS, np.array([row]), read_shard)
    before = cache.misses
    cache.rows(SHARDS, np.array([10]), read_shard)
    assert cache.misses == before
    cache.rows(SHARDS, np.array([20]), read_shard)
    assert cache.misses == before + 1
    large = replace(SHARDS, size=2000, samples=4000)
    assert_are(cache.rows(large, np.array([5]), read_shard), np.array([5]))
    assert cache.bytes == 2 * PAGESIZE and cache.misses == before + 2


def test_shards_of_a_kind_that_is_wanted_less_give_their_memory_to_those_of_another() -> None:
    bound, shape = 64 << 20, (1, 64, 64)
    old = Shards("train", None, 64 * 256, 256, shape, "|u1")
    cache, rows = ShardCache(bound), np.arange(0, old.samples, 256)

    def read(start: int, stop: int) -> np.ndarray:
        return np.full((stop - start, *shape), start // 256, np.uint8)

    before = resident_bytes()
    for shards, wanted in ((old, rows), (replace(old, split="test"), rows[:48]), (old, rows[48:])):
        found = cache.rows(shards, wanted, read)
        assert np.array_equal(found[:, 0, 0, 0], wanted // 256)
    assert cache.misses == 64 + 48 and cache.hits == 16, "the last of the old ones are still there"
    assert cache.bytes == cache.peak_bytes == bound
    assert resident_bytes() - before < 1.25 * bound


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGESIZE
