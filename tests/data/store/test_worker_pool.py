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
