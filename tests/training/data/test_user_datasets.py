"""Batches from a program's data set: each epoch is complete, in its own order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.training.small_recipes import draw_labelled
from torch.utils.data import BatchSampler, DataLoader, Dataset, TensorDataset, WeightedRandomSampler

import cotswold
from cotswold.data import StoreDataset
from cotswold.errors import describe_exception
from cotswold.training.data.indexed import DatasetSamples
from cotswold.training.data.user_datasets import Samples, samples_of, split, training_batches
from cotswold.training.strategies.base import Batches

SAMPLES, BATCH = 23, 4
CPU = torch.device("cpu")


def numbered() -> TensorDataset:
    return TensorDataset(torch.arange(float(SAMPLES)), torch.zeros(SAMPLES))


def weighted() -> DataLoader[Any]:
    sampler = WeightedRandomSampler([1.0] * SAMPLES, SAMPLES)
    return DataLoader(numbered(), batch_size=BATCH, sampler=sampler)


def in_order() -> DataLoader[Any]:
    return DataLoader(numbered(), batch_size=BATCH)


def epochs(batches: Batches, count: int) -> Iterator[list[float]]:
    endless, whole = iter(batches), int(batches.epoch_steps)
    for _ in range(count):
        yield [value for batch in islice(endless, whole) for value in batch.inputs.tolist()]


@pytest.mark.parametrize("given", [numbered, weighted])
def test_every_epoch_has_an_order_of_its_own_that_the_seed_gives(given: Callable[[], Any]) -> None:
    first, second = epochs(training_batches(given(), BATCH, 7, CPU), 2)
    assert first != second
    torch.manual_seed(1)  # of no consequence
    assert [first, second] == list(epochs(training_batches(given(), BATCH, 7, CPU), 2))
    assert first != next(epochs(training_batches(given(), BATCH, 8, CPU), 1))


def test_every_sample_comes_once_an_epoch() -> None:
    (seen,) = epochs(training_batches(numbered(), BATCH, 7, CPU), 1)
    assert sorted(seen) == list(map(float, range(SAMPLES)))


def test_a_loader_that_drops_the_last_batch_drops_it() -> None:
    given = DataLoader(numbered(), BATCH, shuffle=True, drop_last=True)
    (seen,) = epochs(training_batches(given, BATCH, 7, CPU), 1)
    assert len(seen) == len(set(seen)) == 20


def test_batches_of_a_store_are_taken_as_they_are_in_an_order_of_each_epoch(tmp_path: Path) -> None:
    draw_labelled(tmp_path / "images", 10)
    store = cotswold.prepare(tmp_path / "images", tmp_path / "store", size=8, labels="folders")
    given = StoreDataset(store, "train", batch_size=4)
    batches = training_batches(given, 4, 7, CPU)
    endless, count = iter(batches), int(batches.epoch_steps)
    first, second = ([batch.inputs for batch in islice(endless, count)] for _ in range(2))
    assert first[0].shape == (4, 3, 8, 8)
    assert not torch.cat(first).equal(torch.cat(second))


def test_a_loader_in_order_stays_in_order() -> None:
    assert list(epochs(training_batches(in_order(), 99, 7, CPU), 2)) == [list(map(float, range(SAMPLES)))] * 2


def test_batches_draw_nothing_of_what_the_module_draws() -> None:
    before = torch.get_rng_state()
    list(epochs(training_batches(numbered(), BATCH, 7, CPU), 2))
    assert torch.get_rng_state().equal(before)


def test_a_loaders_own_batch_sampler_makes_its_batches() -> None:
    backwards = BatchSampler(range(SAMPLES - 1, -1, -1), BATCH, drop_last=False)
    (seen,) = epochs(training_batches(DataLoader(numbered(), batch_sampler=backwards), 99, 7, CPU), 1)
    assert seen == list(map(float, range(SAMPLES - 1, -1, -1)))


def test_validation_is_drawn_by_the_seed_and_shares_nothing_with_training() -> None:
    samples = samples_of(numbered(), BATCH)
    assert samples is not None

    def drawn(seed: int) -> list[set[float]]:
        return [
            {value for inputs, _ in part.iterate() for value in inputs.tolist()}
            for part in split(samples, 0.3, seed)
        ]

    train, held = drawn(3)
    assert not train & held and train | held == set(map(float, range(SAMPLES))) and len(held) == 7
    assert drawn(3) == [train, held] != drawn(4)


class Broken(Dataset[Any]):
    """A program's data set that cannot be read."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        raise OSError(f"sample {index} cannot be read")


def test_an_error_of_an_own_data_set_names_the_line_of_its_file() -> None:
    with pytest.raises(OSError, match="sample 3") as raised:
        DatasetSamples(Samples(Broken(), BATCH)).batch([3])
    line = Broken.__getitem__.__code__.co_firstlineno + 1
    said = describe_exception(raised.value, "cotswold.training.async_sgd.strategy")
    assert said == f"OSError: sample 3 cannot be read, in {__file__}, line {line}, __getitem__"


def test_a_default_device_of_the_program_changes_no_order() -> None:
    wanted = list(epochs(training_batches(numbered(), BATCH, 1, CPU), 2))
    given = numbered()
    with torch.device("meta"):
        assert list(epochs(training_batches(given, BATCH, 1, CPU), 2)) == wanted
        assert [len(part) for part in split(Samples(given, BATCH), 0.5, 1)] == [11, 12]
