"""The cache of a data server: its bound, and the cost of a hit compared with a copy of the same bytes.

Knows: a served store, memcpy. Does not know: pools, trainers.
"""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median

import numpy as np

from cotswold.bench.measure import Document, interleaved, ratios, rounded
from cotswold.data import Store
from cotswold.data.loading.order import Buffered, Split
from cotswold.data.loading.reader import shuffle_bytes, stored_bytes
from cotswold.data.loading.served_store import DatasetView, ServedStore

SMALL_BYTES = 16 << 20
"""Bound of the cache that is filled beyond its bound."""
_ROUNDS = 5


def cached(store: Store, batch: int) -> Document:
    """Return both measurements as a cell."""
    return {**hits(store, batch, _ROUNDS), **bound(store, batch, SMALL_BYTES)}


def hits(store: Store, batch: int, rounds: int) -> Document:
    """Return seconds for a batch's rows from cached shards, for the same rows taken from one array of the
    whole set, and for a copy of as many contiguous bytes."""
    served, split = ServedStore(store, 1 << 40), "train"
    maker, shards = served._maker(str(DatasetView(split)))
    order = Buffered(
        Split(store.splits[split], store.shard(split), 0),
        max(1, shuffle_bytes(store, split) // stored_bytes(store)),
    )
    rows = order.rows(0)
    batches = [rows[start : start + batch] for start in range(0, len(rows) - batch, batch)][:200]
    whole = store.read_stored(split, 0, store.splits[split])
    into = np.empty_like(whole[:batch])
    for each in batches:
        served.cache.rows(shards, each, maker.read)

    def hit() -> None:
        for each in batches:
            served.cache.rows(shards, each, maker.read)

    def taken() -> None:
        for each in batches:
            np.take(whole, each, axis=0, out=into, mode="clip")

    def copied() -> None:
        for number, _ in enumerate(batches):
            at = number * batch % (len(whole) - batch)
            np.copyto(into, whole[at : at + batch])

    ways = {"hit": hit, "rows_taken": taken, "copy": copied}
    seconds = {
        name: [one / len(batches) for one in found] for name, found in interleaved(ways, rounds).items()
    }
    middle = {name: 1e6 * median(found) for name, found in seconds.items()}
    return {
        "bytes": into.nbytes,
        **{f"{name}_microseconds": rounded(one) for name, one in middle.items()},
        "hit_of_copy": ratios(seconds["hit"], seconds["copy"]).as_dict()["median"],
    }


def bound(store: Store, batch: int, cache_bytes: int) -> Document:
    """Read batches of an epoch with a cache smaller than the set.

    Return the peak size of the cache and the growth of the process's memory.
    """
    served = ServedStore(store, cache_bytes)
    view, split = str(DatasetView("train")), "train"
    order = Buffered(
        Split(store.splits[split], store.shard(split), 0),
        max(1, shuffle_bytes(store, split) // stored_bytes(store)),
    )
    rows = order.rows(0)
    before, most = _resident(), 0
    for start in range(0, min(len(rows), 40 * batch) - batch + 1, batch):
        served.batches(view, 0, rows[None, start : start + batch])
        most = max(most, _resident() - before)
    cache = served.cache
    return {
        "bound_bytes": cache_bytes,
        "cached_bytes_most": cache.peak_bytes,
        "of_bound": rounded(cache.peak_bytes / cache_bytes),
        "resident_growth_bytes": most,
        "set_bytes": stored_bytes(store) * store.splits[split],
        "hits": cache.hits,
        "misses": cache.misses,
    }


def _resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
