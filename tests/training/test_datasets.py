"""Batches from a program's data set: each epoch once through, in an order of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from cotswold.training.datasets import samples_of, split, training_batches
from cotswold.training.strategy import Batches

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


def test_an_epoch_of_a_map_style_set_has_whole_batches_of_samples_that_come_once() -> None:
    (seen,) = epochs(training_batches(numbered(), BATCH, 7, CPU), 1)
    assert len(seen) == len(set(seen)) == 20


def test_a_loader_in_order_stays_in_order() -> None:
    assert list(epochs(training_batches(in_order(), 99, 7, CPU), 2)) == [list(map(float, range(20)))] * 2


def test_batches_draw_nothing_of_what_the_module_draws() -> None:
    before = torch.get_rng_state()
    list(epochs(training_batches(numbered(), BATCH, 7, CPU), 2))
    assert torch.get_rng_state().equal(before)


def test_validation_is_drawn_by_the_seed_and_shares_nothing_with_training() -> None:
    samples = samples_of(numbered(), BATCH)
    assert samples is not None

    def drawn(seed: int) -> list[set[float]]:
        return [
            {value for inputs, _ in part.in_order() for value in inputs.tolist()}
            for part in split(samples, 0.3, seed)
        ]

    train, held = drawn(3)
    assert not train & held and train | held == set(map(float, range(SAMPLES))) and len(held) == 7
    assert drawn(3) == [train, held] != drawn(4)
