"""What servers know of a run's buckets before there are any."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cotswold.cluster.arithmetic import raw
from cotswold.cluster.description import Description
from cotswold.cluster.roles.updates import said
from cotswold.ops import updates
from cotswold.optim.updates import Adagrad, Momentum, Rule, Sgd
from cotswold.server.asynchronous import Asynchronous, Room
from cotswold.server.messages import COORDINATOR, Order, Prepare, Write
from cotswold.server.staleness import Staleness


def described(rule: Rule, dtype: str, shard_bytes: int = 64, count: int = 2) -> Description:
    settings = Asynchronous("run", "x", rule, {"weights": 4}, 4, Room(1 << 20, 1 << 20), Staleness())
    return Description("run", (("weights", 32, 4),), dtype, shard_bytes, count, said(settings))


@pytest.mark.parametrize("rule", [Sgd(), Momentum(0.9), Adagrad()], ids=lambda rule: rule.name)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_the_first_update_of_a_run_loads_is_loaded_before_there_is_one(rule: Rule, dtype: str) -> None:
    updates._shard.cache_clear()
    described(rule, dtype).rehearse()
    assert updates._shard.cache_info().currsize == 1


@pytest.mark.parametrize(("shard_bytes", "buffers"), [(128, 1), (48, 11), (1024, 1)])
def test_a_secondary_takes_what_its_primary_sends_whatever_shards_the_bucket_has(
    shard_bytes: int, buffers: int
) -> None:
    """Shards that fill lines of the cache lie side by side, and travel as one buffer."""
    run = described(Sgd(), "float32", shard_bytes, 1)
    (bucket,) = run.buckets
    primary, secondary = run.contents(bucket), run.contents(bucket)
    rows = [np.arange(each.start, each.stop, dtype=np.float32) for each in run.shards]
    numbers = tuple(each.number for each in run.shards)
    primary.receive(COORDINATOR, Write(1, "x", numbers, tuple(map(raw, rows))))
    assert primary.stamp()
    told = primary.since(-1)
    prepare = Prepare(bucket, 1, -1, 1, 0, told.change, told.names, told.buffers)
    assert len(told.buffers) == buffers and secondary.takes(prepare, None)
    secondary.install(prepare)
    assert all(map(np.array_equal, secondary.vectors["x"], rows))
    for wrong in (told.buffers[1:], (*told.buffers, bytes(4)), (bytes(8), *told.buffers[1:])):
        assert not secondary.takes(replace(prepare, buffers=wrong), None)


def test_a_vector_that_is_written_after_a_state_was_frozen_was_zeros_then() -> None:
    run = described(Sgd(), "float32", 128, 1)
    (bucket,) = run.buckets
    primary, secondary = run.contents(bucket), run.contents(bucket)
    numbers = tuple(each.number for each in run.shards)
    ones = tuple(np.ones(each.stop - each.start, np.float32).tobytes() for each in run.shards)
    primary.receive(COORDINATOR, Write(1, "x", numbers, ones))
    primary.receive(COORDINATOR, Order(1, ((1, "replica"),), ((1, 0.1),), 1, 0))
    assert primary.stamp() and primary.updates.frozen is not None, "nobody owes a marker"
    primary.receive(COORDINATOR, Write(2, "late", numbers, ones))
    assert primary.stamp()
    told = primary.since(-1)
    prepare = Prepare(bucket, 1, -1, primary.index, 0, told.change, told.names, told.buffers)
    assert secondary.takes(prepare, None)
    secondary.install(prepare)
    frozen = secondary.updates.frozen
    assert frozen is not None and not np.any(np.concatenate(frozen.vectors["late"]))
    assert np.all(np.concatenate(frozen.vectors["x"]) == 1)
    assert np.all(np.concatenate(secondary.vectors["late"]) == 1)
