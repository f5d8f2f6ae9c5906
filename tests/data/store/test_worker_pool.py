"""Processes that work on shards: their arguments, their results."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from typing import Any

import numpy as np
import pytest

from cotswold.data.store.shard import StoreShard
from cotswold.data.store.worker_pool import WorkerPool


class Telling:
    """Work that reports the state of its process."""

    def measure(self, shard: StoreShard) -> tuple[tuple[str | None, str], dict[int, str]]:
        return (os.environ.get("OMP_NUM_THREADS"), getattr(sys.modules["__main__"], "MARK", "none")), {}

    def write(self, shard: StoreShard, transform: None, broken: Any) -> Any:
        raise NotImplementedError

    def estimated(self, shards: list[StoreShard], pool: Any) -> Any:
        raise NotImplementedError


class InMain:
    """An object that other threads pickle by its place in the main module."""


@pytest.mark.slow
def test_pools_of_two_threads_leave_the_main_module_and_the_environment_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    main = sys.modules["__main__"]
    monkeypatch.setattr(InMain, "__module__", "__main__")
    monkeypatch.setattr(main, "InMain", InMain, raising=False)
    monkeypatch.setattr(main, "MARK", "here", raising=False)
    about, environment = dict(vars(main)), dict(os.environ)
    shards = [StoreShard("train", n, n, 1, np.array([n])) for n in range(4)]  # type: ignore[arg-type]  # nobody reads it
    seen: list[object] = []

    def pool() -> None:
        with WorkerPool(Telling(), 2) as started:
            seen.extend(found for _, (found, _) in started.measure(shards))

    threads = [threading.Thread(target=pool) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        pickle.dumps(InMain())
    assert seen == [("1", "none")] * 8
    assert vars(main) == about and dict(os.environ) == environment


class Counting(Telling):
    """Work that finds as many broken samples in a shard as its number says, and returns what `write` gets."""

    def measure(self, shard: StoreShard) -> Any:
        return None, dict.fromkeys(range(shard.number + 1), "broken")

    def write(self, shard: StoreShard, transform: None, broken: Any) -> Any:
        return None, broken


def test_shards_that_were_measured_beyond_the_estimate_are_not_decoded_again() -> None:
    shards = [StoreShard("train", n, n, 1, np.array([n])) for n in range(8)]  # type: ignore[arg-type]  # nobody reads it
    with WorkerPool(Counting(), 2) as pool:
        first, (_, broken) = next(pool.measure(shards))
        given = [found for _, (_, found) in pool.write(shards, None, {first.key: broken})]
    measured = 4  # two for each process
    assert given == [dict.fromkeys(range(n + 1), "broken") for n in range(measured)] + [None] * (8 - measured)
