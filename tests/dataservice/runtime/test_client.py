"""Requests of a trainer to data servers, prefetched requests, and its queue."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from threading import enumerate as enumerate_threads

import numpy as np
import pytest
import torch
from tests.dataservice.runtime.test_pool import ASKING, BATCH, check, expected, reading, served, store, until  # noqa: F401  # the fixture

from cotswold.data import Store
from cotswold.data.loading.batching import BatchRows, coalesce
from cotswold.data.loading.served_store import DatasetView
from cotswold.dataservice.core.epoch_pass import SharedEpochSettings
from cotswold.dataservice.runtime import client as feeding
from cotswold.dataservice.runtime.batch_tensors import window_bytes
from cotswold.dataservice.runtime.client import DataClient
from cotswold.errors import ClusterError, MachineError
from cotswold.host import ForkServer, Token
from cotswold.wire import BatchReply


@pytest.mark.parametrize("together", [3, 8, 100])
def test_batches_that_are_asked_for_together_are_the_same(
    together: int,
    store: Store,  # noqa: F811  # the fixture
    fork_server: ForkServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    ask = DataClient._submit

    def noted(client: DataClient, view: str, wanted: BatchRows) -> int:
        asked.append(len(wanted.rows))
        return ask(client, view, wanted)

    monkeypatch.setattr(DataClient, "_submit", noted)
    with (
        served(store, fork_server, servers=2) as (pool, token),
        reading(pool, token, store, replace(ASKING, batches_per_request=together)) as reader,
    ):
        check(reader, expected(store, 60))
    whole, rest = divmod(200 // BATCH, together)
    assert set(asked) == {together if whole else rest, rest} - {0}, "none of two epochs"


def test_batches_together_have_no_more_bytes_than_they_may() -> None:
    rows = np.arange(40)
    wanted = [BatchRows(0, rows[start : start + 4]) for start in range(0, 40, 4)]
    assert [len(each.rows) for each in coalesce(iter(wanted), 100, 1400, 8)] == [3, 3, 3, 1]
    assert [len(each.rows) for each in coalesce(iter(wanted), 100, 1, 8)] == [1] * 10
    assert [len(each.rows) for each in coalesce(iter(wanted), 0, 1, 8)] == [1] * 10
    assert np.array_equal(np.concatenate([each.rows.ravel() for each in coalesce(wanted, 1, 199, 8)]), rows)
    odd = [BatchRows(0, rows[:4]), BatchRows(0, rows[4:8]), BatchRows(0, rows[8:9])]
    assert [each.rows.shape for each in coalesce(odd, 1, 10_000, 8)] == [(2, 4), (1, 1)]
    assert [len(each.rows) for each in coalesce(wanted, 0, 160, 8)] == [2] * 5, "rows and labels count"
    two = [BatchRows(0, rows[:4]), BatchRows(1, rows[:4]), BatchRows(1, rows[4:8])]
    assert [(each.epoch, len(each.rows)) for each in coalesce(two, 1, 10_000, 8)] == [(0, 1), (1, 2)]


@pytest.mark.parametrize(("varying", "most"), [("", 8), ('[{"name": "custom"}]', 1)])
def test_functions_of_ones_own_are_given_the_batches_of_a_run_without_data_servers(
    varying: str,
    most: int,
    store: Store,  # noqa: F811  # the fixture
    fork_server: ForkServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def noted(client: DataClient, view: str, wanted: BatchRows) -> int:
        asked.append(len(wanted.rows))
        raise MachineError("enough")

    monkeypatch.setattr(DataClient, "_submit", noted)
    wanted = (BatchRows(0, np.arange(4)) for _ in range(100))
    with (
        served(store, fork_server) as (pool, token),
        DataClient(token, pool.address) as client,
        pytest.raises(MachineError, match="enough"),
    ):
        next(client.batches(DatasetView("train", augmentation_json=varying), wanted, 4))
    assert set(asked) == {most}


def test_what_is_under_way_is_bounded_also_where_the_first_batch_is_short(
    store: Store,  # noqa: F811  # the fixture
    fork_server: ForkServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape, asked = store.shape, list[int]()
    sample_bytes = window_bytes((shape.channels, shape.height, shape.width))
    monkeypatch.setattr(feeding, "AHEAD_BYTES", 60 * sample_bytes)
    ask = DataClient._submit

    def noted(client: DataClient, view: str, wanted: BatchRows) -> int:
        number = ask(client, view, wanted)
        asked.append(sum(each.request.samples for each in client._machine.requests._requests.values()))
        return number

    monkeypatch.setattr(DataClient, "_submit", noted)
    wanted = [BatchRows(0, np.arange(1)), *(BatchRows(0, np.arange(20)) for _ in range(12))]
    asking = replace(ASKING, batches_per_request=1)
    with (
        served(store, fork_server) as (pool, token),
        DataClient(token, pool.address, request_settings=asking) as client,
    ):
        found = list(client.batches(DatasetView("train"), iter(wanted), sample_bytes))
    assert [len(labels) for _, labels in found] == [1] + [20] * 12
    assert max(asked) <= 60


def test_a_stop_is_heard_that_comes_before_the_first_batch_is_asked_for() -> None:
    with DataClient(Token.new(), start_seconds=5.0) as client:
        batches = client.batches(DatasetView("train"), iter(()), 4)
        client.stop()
        assert list(batches) == []
        batches = client.shared_epoch(DatasetView("train"), SharedEpochSettings("s", (), 2, 1), 0, np.arange)
        client.stop()
        assert list(batches) == []


def test_a_loop_keeps_little_of_the_memory_of_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "BORROWED_BYTES", 300)
    with DataClient(Token.new()) as client:
        client._sample_bytes = 80

        def batch() -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
            values = np.ones(20, np.float32)
            made = BatchReply("s", 1, (4, 5, 1, 1), (1,), (values.data.cast("B"), memoryview(bytearray(8))))
            return (*client._batches_of(made)[0], values)

        def is_lent(found: tuple[torch.Tensor, torch.Tensor, np.ndarray]) -> bool:
            found[2][:] = 7.0
            assert found[0].shape == (1, 1, 4, 5)
            return bool((found[0] == 7.0).all())

        kept = [batch() for _ in range(4)]
        assert list(map(is_lent, kept)) == [True, True, True, False]
        view = kept[0][0][0]
        del kept
        gc.collect()
        more = [batch() for _ in range(3)]
        assert list(map(is_lent, more)) == [True, True, False]
        assert bool((view == 7.0).all()), "what is still looked at"


def test_what_is_no_batch_of_what_was_asked_for_is_an_error() -> None:
    with DataClient(Token.new()) as client:
        client._sample_bytes = 80
        made = BatchReply("s", 1, (4, 4, 1, 1), (1,), (bytearray(64), bytearray(8)))
        with pytest.raises(MachineError, match=r"s sent an invalid batch .*80 bytes"):
            client._batches_of(made)


def test_a_client_that_cannot_be_leaves_nothing_open() -> None:
    token = Token.new()
    open_now = Path("/proc/self/fd")
    before = len(list(open_now.iterdir()))
    for _ in range(3):
        with pytest.raises(ClusterError):
            DataClient(token, "no address")
    until(lambda: len(list(open_now.iterdir())) <= before)
    assert "cotswold-data" not in {each.name for each in enumerate_threads()}
