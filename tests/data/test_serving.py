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
from cotswold.data.serving import ServedStore, Terms, View, said
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
    ("view", "epoch", "rows"),
    [
        (str(View("train")), 0, [210]),
        (str(View("train")), 0, [-1]),
        (str(View("train")), 0, []),
        (str(View("train")), -1, [0]),
        (str(View("nowhere")), 0, [0]),
        ("no JSON", 0, [0]),
        (json.dumps(["train", 0, None, '[{"name": "spin"}]']), 0, [0]),
        (json.dumps(["train", 0, None, '[{"name": "own", "function": "os:getpid"}]']), 0, [0]),
    ],
)
def test_what_is_not_there_is_refused(store: Store, view: str, epoch: int, rows: list[int]) -> None:
    with pytest.raises(UserError):
        ServedStore(store, 1 << 20).batch(view, epoch, np.array(rows, np.int64))


def test_a_view_does_not_have_a_module_imported(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unasked.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    view = json.dumps(["train", 0, None, '[{"name": "own", "function": "unasked:anything"}]'])
    with pytest.raises(UserError, match="only where they were started with them"):
        ServedStore(store, 1 << 20).batch(view, 0, np.array([0]))
    for text in ("{}", "[3]", '"own"', "no JSON", "[{}]"):
        with pytest.raises(UserError):
            ServedStore(store, 1 << 20).batch(json.dumps(["train", 0, None, text]), 0, np.array([0]))


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
    assert small.cache.bytes_most == bound and small.cache.hits < 12


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
