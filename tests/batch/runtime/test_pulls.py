"""Vectors pulled by a worker from parameter servers."""

from __future__ import annotations

import numpy as np

from cotswold import wire as m
from cotswold.batch.runtime.pulls import VectorPulls

SHARDS = [m.Shard(0, "server-0", 0, 3, "w", 0), m.Shard(1, "server-1", 3, 5, "w", 1)]


def test_a_vector_is_there_once_every_shard_has_come_whatever_comes_twice() -> None:
    told: list[tuple[str, m.Message]] = []
    found: list[list[float]] = []
    pulls = VectorPulls(SHARDS, np.dtype(np.float32), lambda server, message: told.append((server, message)))
    pulls.fetch(
        session=1, evaluation=2, name="x", now=0.0, on_complete=lambda each: found.append(each.tolist())
    )
    assert sorted(server for server, _ in told) == ["server-0", "server-1"]
    first = m.Pulled(1, 2, "x", "server-0", (0,), (np.array([1, 2, 3], np.float32).tobytes(),))
    pulls.on_pulled(first)
    pulls.on_pulled(first)
    told.clear()
    pulls.resend(3.0, 2.0)
    assert [server for server, _ in told] == ["server-1"]
    pulls.on_pulled(m.Pulled(1, 2, "x", "server-1", (1,), (np.array([4, 5], np.float32).tobytes(),)))
    assert found == [[1, 2, 3, 4, 5]]


def test_a_vector_that_a_server_does_not_give_is_not_asked_for_again() -> None:
    told: list[tuple[str, m.Message]] = []
    why: list[str] = []
    pulls = VectorPulls(SHARDS, np.dtype(np.float32), lambda server, message: told.append((server, message)))
    pulls.fetch(session=1, evaluation=0, name="y", now=0.0, on_complete=why.clear, failed=why.append)  # type: ignore[arg-type]  # it does not come
    pulls.on_pulled(m.Pulled(1, 0, "y", "server-0", (), (), "unknown vector 'y'"))
    assert why == ["unknown vector 'y'"]
    told.clear()
    pulls.resend(9.0, 2.0)
    assert told == []
