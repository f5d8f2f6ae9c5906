"""A store in a foreign training loop."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from cotswold.data import Store, StoreDataset, VectorPreparation, open_vectors, prepare
from cotswold.errors import StoreError, UserError

SAMPLES = 203

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")  # what is tested here


def written(folder: Path, samples: int = SAMPLES) -> Store:
    """Write vectors (i, -i) with label i."""
    numbers = np.arange(samples)
    np.savez(folder / "a.npz", x=np.stack([numbers, -numbers], 1), y=numbers)
    preparation = VectorPreparation(2, standardise=False)
    prepare(open_vectors(folder / "a.npz", labels="file"), folder / "s", preparation, validation=0, jobs=1)
    return Store(folder / "s")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Make a store of 13 shards of 16."""
    monkeypatch.setattr("cotswold.data.store.layout._SHARD_VECTORS_MAX", 16)
    return written(tmp_path)


def labels(batches: Any) -> list[int]:
    return [int(label) for _, ys in batches for label in ys.reshape(-1)]


def test_one_pass_is_every_sample_once_and_x_goes_with_y(store: Store) -> None:
    found = list(StoreDataset(store, seed=1))
    assert sorted(int(y) for _, y in found) == list(range(SAMPLES))
    assert [int(y) for _, y in found] != sorted(int(y) for _, y in found)
    for x, y in found:
        assert x.shape == (2, 1, 1) and x.dtype == torch.float32 and y.dtype == torch.int64
        assert x.flatten().tolist() == [float(y), -float(y)]
        assert x.untyped_storage().nbytes() == 8, "a sample that is kept keeps no others"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ours", [True, False], ids=["our batches", "the loader's batches"])
def test_a_loader_has_every_sample_once_over_all_workers(store: Store, workers: int, ours: bool) -> None:
    dataset = StoreDataset(store, batch_size=16 if ours else None, buffer_bytes=8 * 32)
    loader = DataLoader(dataset, batch_size=None if ours else 16, num_workers=workers)
    epochs = []
    for epoch in range(2):
        dataset.set_epoch(epoch)
        batches = list(loader)
        assert all(x.is_contiguous() and x.shape[1:] == (2, 1, 1) for x, _ in batches)
        epochs.append(labels(batches))
        if ours or not workers:
            assert len(batches) == len(loader) == 13
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(SAMPLES))
    assert epochs[0] != epochs[1]
    dataset.set_epoch(0)
    assert labels(loader) == epochs[0], "an order depends on seed and epoch alone"


@pytest.mark.parametrize("started", ["fork", "spawn"])
def test_workers_that_persist_hear_of_the_epoch_however_they_are_started(started: str, store: Store) -> None:
    dataset = StoreDataset(store, batch_size=32)
    loader = DataLoader(
        dataset, batch_size=None, num_workers=1, persistent_workers=True, multiprocessing_context=started
    )
    epochs = []
    for epoch in (0, 1, 0):
        dataset.set_epoch(epoch)
        epochs.append(labels(loader))
    assert epochs[0] == epochs[2] != epochs[1]
    assert sorted(epochs[1]) == list(range(SAMPLES))


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_share_an_epoch_evenly_and_leave_out_fewer_than_there_are_ranks(
    store: Store, ranks: int
) -> None:
    datasets = [StoreDataset(store, rank=rank, world_size=ranks, batch_size=10) for rank in range(ranks)]
    missing = []
    for epoch in range(2):
        parts = []
        for dataset in datasets:
            dataset.set_epoch(epoch)
            parts.append(labels(dataset))
        assert {len(part) for part in parts} == {SAMPLES // ranks}
        seen = [label for part in parts for label in part]
        assert len(set(seen)) == len(seen)
        missing.append(set(range(SAMPLES)) - set(seen))
    assert missing[0] != missing[1]


def test_in_order_ranks_have_every_sample(store: Store) -> None:
    parts = [labels(StoreDataset(store, shuffle=False, rank=rank, world_size=4)) for rank in range(4)]
    whole = store.labels("train").tolist()
    assert [label for part in parts for label in part] == whole
    assert labels(StoreDataset(store, shuffle=False)) == whole


@pytest.mark.parametrize("batch_size", [None, 10])
def test_a_state_goes_on_in_the_middle_of_a_pass(store: Store, batch_size: int | None) -> None:
    dataset = StoreDataset(store, seed=5, batch_size=batch_size)
    dataset.set_epoch(3)
    whole = labels(dataset)
    passing = iter(dataset)
    begun = labels([next(passing) for _ in range(4)])
    state = json.loads(json.dumps(dataset.state_dict()))
    other = StoreDataset(store, seed=5, batch_size=batch_size)
    other.load_state_dict(state)
    assert other.state_dict() == state
    other.set_epoch(other.epoch)  # as loops do
    assert begun + labels(other) == whole
    assert labels(other) == whole, "the pass after it is a whole one"


def test_each_worker_goes_on_with_a_state_of_its_own(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    class Info:
        num_workers = 2

        def __init__(self, number: int) -> None:
            self.id = number

    whole, after = [], []
    for number in range(2):
        monkeypatch.setattr(
            "cotswold.data.loading.dataset.get_worker_info", lambda number=number: Info(number)
        )
        dataset = StoreDataset(store, batch_size=10)
        whole.append(labels(dataset))
        passing = iter(dataset)
        begun = labels([next(passing) for _ in range(3 + number)])
        other = pickle.loads(pickle.dumps(dataset))
        other.load_state_dict(dataset.state_dict())
        after.append(begun + labels(other))
    assert after == whole and sorted(whole[0] + whole[1]) == list(range(SAMPLES))
    monkeypatch.undo()
    other.load_state_dict(dataset.state_dict() | {"worker": 1, "workers": 2})
    with pytest.raises(UserError, match="worker 1 of 2; resume with the same number of workers"):
        iter(other)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda state: {**state, "seed": 9}, "another seed"),
        (lambda state: {**state, "store": "x"}, "another store"),
        (lambda state: {**state, "world_size": 2}, "another world_size"),
        (lambda state: {**state, "position": 10**6}, "has position 1000000"),
        (lambda state: {**state, "position": "1"}, "position"),
        (lambda state: {}, "another store and split"),
    ],
)
def test_a_state_of_something_else_is_refused(
    change: Callable[[dict[str, Any]], dict[str, Any]], says: str, store: Store
) -> None:
    dataset = StoreDataset(store)
    with pytest.raises(UserError, match=says):
        dataset.load_state_dict(change(dataset.state_dict()))


def test_what_makes_no_sense_is_refused(store: Store, tmp_path: Path) -> None:
    wrongs: tuple[dict[str, Any], ...] = (
        {"batch_size": 0},
        {"rank": 2, "world_size": 2},
        {"rank": -1},
        {"split": "validation"},
    )
    for wrong in wrongs:
        with pytest.raises(UserError):
            StoreDataset(store, **wrong)
    with pytest.raises(UserError, match="epoch must be at least 0, got -1"):
        StoreDataset(store).set_epoch(-1)
    dataset = StoreDataset(store.path)
    (tmp_path / "s").rename(tmp_path / "old")
    written(tmp_path, 7)
    with pytest.raises(StoreError, match="has changed since the data set was created"):
        next(iter(dataset))
