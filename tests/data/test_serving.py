"""What a data server makes: the same batches as a reader, from a cache that stays within its bound."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from cotswold.data import Reader, Store
from cotswold.data.augment import Augmentation
from cotswold.data.buffer import Epoch
from cotswold.data.order import Buffered, Split
from cotswold.data.serving import ServedStore, Terms, View, needed_cache_bytes, said
from cotswold.data.shard_cache import ShardCache
from cotswold.errors import UserError
from cotswold.geometry import Box

VARIED = Augmentation.of([{"name": "rotation", "degrees": 20.0}, {"name": "reflection", "horizontal": 0.5}])


def served(store: Store, view: View, batch: int, cache_bytes: int = 1 << 20) -> list[torch.Tensor]:
    """Two epochs as a reader of seed 3 wants them, of a data server's work."""
    work = ServedStore(store, cache_bytes)
    order = Buffered(
        Split(store.splits["train"], store.shard("train"), 3), Terms.of(store).splits["train"].buffer
    )
    found: list[torch.Tensor] = []
    for number in range(2):
        rows = order.rows(number)[: store.splits["train"] // batch * batch]
        for each in Epoch(number, rows, batch).batches():
            found += work.batch(str(view), number, each)
    return found


@pytest.mark.parametrize("box", [None, Box((2, 3), (10, 9))])
@pytest.mark.parametrize("varying", [None, VARIED])
def test_a_data_server_makes_what_a_reader_makes(
    store: Store, varying: Augmentation | None, box: Box | None
) -> None:
    reader = Reader(store, "train", 25, seed=3, varying=varying, box=box)
    expected = [each for _ in range(2) for pair in reader for each in pair]
    reader.close()
    view = View("train", 3, box, said(varying))
    found = served(store, View.parsed(str(view)), 25)
    assert len(found) == len(expected) == 2 * 2 * (210 // 25)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other) and one.stride() == other.stride()


def test_terms_come_back_from_their_text(store: Store) -> None:
    assert Terms.parsed(str(Terms.of(store))) == Terms.of(store)
    with pytest.raises(UserError, match="another version"):
        Terms.parsed('{"store": 3}')


@pytest.mark.parametrize(
    ("view", "epoch", "rows", "why"),
    [
        (str(View("train")), 0, [210], "which has 210"),
        (str(View("train")), 0, [-1], "which has 210"),
        (str(View("train")), 0, [], "a batch of 0 rows"),
        (str(View("train")), -1, [0], "of epoch -1"),
        (str(View("nowhere")), 0, [0], "no split 'nowhere'"),
        ("no JSON", 0, [0], "names no view"),
        (json.dumps(["train", 0]), 0, [0], "names no view"),
        (json.dumps(["train", 0, [[0], [3]], "", ""]), 0, [0], "is no window"),
        (str(View("train", varying='[{"name": "spin"}]')), 0, [0], "spin"),
        (str(View("train", varying="{}")), 0, [0], "names no transforms"),
        (str(View("train", store="sounds")), 0, [0], "of the store sounds are wanted"),
    ],
)
def test_what_is_not_there_is_refused(store: Store, view: str, epoch: int, rows: list[int], why: str) -> None:
    with pytest.raises(UserError, match=why):
        ServedStore(store, 1 << 20).batch(view, epoch, np.array(rows, np.int64))


def test_a_batch_that_is_too_long_for_a_message_is_refused_before_it_is_made(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = 4 * store.shape.size
    monkeypatch.setattr("cotswold.data.serving.BATCH_BYTES", 20 * each)
    work = ServedStore(store, 1 << 20)
    assert len(work.batch(str(View("train")), 0, np.arange(20))[0]) == 20
    before = work.cache.misses + work.cache.hits
    with pytest.raises(UserError, match=f"21 samples of {each} bytes is too long .* take 20 samples at most"):
        work.batch(str(View("train")), 0, np.arange(21))
    assert work.cache.misses + work.cache.hits == before
    small = View("train", box=Box((0, 0), (2, 2)))
    assert len(work.batch(str(small), 0, np.arange(21))[0]) == 21


def test_a_view_does_not_have_a_module_imported(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unasked.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    view = str(View("train", varying='[{"name": "own", "function": "unasked:anything"}]'))
    with pytest.raises(UserError, match="only where they were started with them"):
        ServedStore(store, 1 << 20).batch(view, 0, np.array([0]))
    for text in ("{}", "[3]", '"own"', "no JSON", "[{}]"):
        with pytest.raises(UserError, match="names no transforms"):
            ServedStore(store, 1 << 20).batch(str(View("train", varying=text)), 0, np.array([0]))


def test_the_cache_of_a_store_is_hit_and_stays_within_its_bound(
    plain_store: Callable[..., Store], small_shards: None
) -> None:
    store = plain_store(96)
    rows, bound = np.arange(96), 3 * 16 * 24
    small, large = ServedStore(store, bound), ServedStore(store, 1 << 20)
    for _ in range(3):
        for work in (small, large):
            samples, _ = work.batch(str(View("train")), 0, rows)
            assert torch.equal(samples, torch.from_numpy(store.read("train", 0, 96)))
    assert large.cache.misses == 6 and large.cache.hits == 12
    assert small.cache.bytes_most == bound
    assert (small.cache.misses, small.cache.hits) == (18, 0), "each was let go before it was wanted again"


def test_a_cache_of_what_is_needed_reads_few_shards_twice_and_a_smaller_one_many(
    plain_store: Callable[..., Store], small_shards: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cotswold.data.order._LEAST_BYTES", 24 * 40)
    store = plain_store(480)
    needed = needed_cache_bytes(store)
    assert 40 * 24 <= needed < 480 * 24
    shards = -(-480 // store.shard("train"))
    reads = []
    for cache in (needed, needed // 2):
        work = ServedStore(store, cache)
        order = Buffered(Split(480, store.shard("train"), 0), Terms.of(store).splits["train"].buffer)
        for row in order.rows(0):
            work.batch(str(View("train")), 0, np.array([row]))
        reads.append(work.cache.misses)
    assert reads[0] < 1.5 * shards < reads[1]


def array(number: int) -> np.ndarray:
    return np.full(100, number, np.uint8)


def test_a_cache_stays_within_its_bound_whoever_asks() -> None:
    cache = ShardCache(350)
    seen: list[int] = []

    def ask(number: int) -> None:
        key = number // 4 * 7 % 11
        assert cache.get(key, 100, lambda: array(key))[0] == key
        seen.append(cache.bytes)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(ask, range(2000)))
    assert cache.bytes_most <= 350 and max(seen) <= 350
    assert cache.hits + cache.misses >= 2000 and cache.hits > 0


def test_an_array_that_many_want_is_loaded_once() -> None:
    cache, loads, gate = ShardCache(1000), [], threading.Event()

    def load() -> np.ndarray:
        loads.append(1)
        gate.wait(10)
        return array(5)

    with ThreadPoolExecutor(4) as threads:
        found = [threads.submit(cache.get, "key", 100, load) for _ in range(4)]
        gate.set()
        assert all(each.result(10)[0] == 5 for each in found)
    assert len(loads) == 1


def test_a_load_that_fails_leaves_no_trace_and_the_next_one_tries_again() -> None:
    cache = ShardCache(1000)

    def fail() -> np.ndarray:
        raise UserError("damaged")

    for _ in range(20):
        with pytest.raises(UserError, match="damaged"):
            cache.get("key", 600, fail)
    assert cache.bytes == 0
    assert cache.get("key", 100, lambda: array(3))[0] == 3


def test_what_was_used_longest_ago_goes_first_and_the_too_large_is_not_kept() -> None:
    cache = ShardCache(250)
    for key in (1, 2, 1, 3):
        cache.get(key, 100, lambda key=key: array(key))  # type: ignore[misc]  # mypy and defaults
    before = cache.misses
    cache.get(1, 100, lambda: array(1))
    assert cache.misses == before
    cache.get(2, 100, lambda: array(2))
    assert cache.misses == before + 1
    kept = cache.bytes
    assert cache.get(9, 300, lambda: array(9))[0] == 9
    assert cache.bytes == kept <= 250
