"""DataLoaders of a program are read unchanged, and a resumed run continues from its last batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.data.test_user_datasets import BATCH, CPU, SAMPLES, epochs, in_order, numbered, weighted
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, get_worker_info

from cotswold.errors import CheckpointError, UserError
from cotswold.training.data.indexed import DatasetSamples
from cotswold.training.data.loaders import generators_of, resume_note
from cotswold.training.data.user_datasets import Samples, split_samples, training_batches, validation_batches
from cotswold.training.full_batch.module_batch import map_style


class Doubled(DataLoader[Any]):
    """A loader that transforms its batches."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # what programs write
        for inputs, targets in super().__iter__():
            yield 2 * inputs, targets


class Noisy(Dataset[Any]):
    """Samples redrawn each time, from torch's random numbers."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        assert get_worker_info() is None, "read by a process of its own"
        return index + torch.rand(()), torch.zeros(())


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.zeros(()), torch.zeros(()))] * SAMPLES)

    def __len__(self) -> int:
        return SAMPLES


def own_generator() -> DataLoader[Any]:
    return DataLoader(numbered(), BATCH, shuffle=True, generator=torch.Generator().manual_seed(3))


def test_a_sampler_decides_how_many_samples_an_epoch_has() -> None:
    sampler = RandomSampler(numbered(), num_samples=8)
    batches = training_batches(DataLoader(numbered(), BATCH, sampler=sampler), BATCH, 7, CPU)
    assert batches.epoch_steps == 2
    assert [len(seen) for seen in epochs(batches, 3)] == [8] * 3


def test_the_own_iteration_of_a_loaders_subclass_is_used() -> None:
    (seen,) = epochs(training_batches(Doubled(numbered(), BATCH), BATCH, 7, CPU), 1)
    assert seen == [2.0 * number for number in range(SAMPLES)]


def test_the_workers_of_a_loader_are_begun_by_its_own_function(tmp_path: Path) -> None:
    def begin(worker: int) -> None:
        (tmp_path / str(worker)).touch()

    loader = DataLoader(
        numbered(), SAMPLES, num_workers=1, worker_init_fn=begin, multiprocessing_context="fork"
    )
    next(iter(training_batches(loader, BATCH, 7, CPU)))
    assert (tmp_path / "0").exists()


@pytest.mark.parametrize(
    "given", [weighted, own_generator, in_order, lambda: DataLoader(Noisy(), BATCH, shuffle=True)]
)
@pytest.mark.parametrize("stop_at", [0, 2, 6, 8])
def test_a_resumed_loader_gives_the_batches_of_one_that_was_not_stopped(
    given: Callable[[], DataLoader[Any]], stop_at: int
) -> None:
    whole = [batch.inputs.tolist() for batch in islice(training_batches(given(), BATCH, 7, CPU), 14)]
    begun = training_batches(given(), BATCH, 7, CPU)
    first = [batch.inputs.tolist() for batch in islice(begun, stop_at)]
    torch.manual_seed(5)  # whatever was drawn meanwhile
    resumed = training_batches(given(), BATCH, 7, CPU)
    resumed.load_state_dict(begun.state_dict())
    later = [batch.inputs.tolist() for batch in islice(resumed, 14 - stop_at)]
    assert first + later == whole


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (DataLoader(numbered(), BATCH, shuffle=True), "sampler SequentialSampler there, RandomSampler here"),
        (DataLoader(numbered(), 5), "batch_size 4 there, 5 here"),
        (own_generator(), "sampler"),
        (numbered(), "the batches of a DataLoader"),
    ],
)
def test_the_place_in_a_loader_is_refused_by_what_reads_otherwise(other: Any, said: str) -> None:
    state = training_batches(in_order(), BATCH, 7, CPU).state_dict()
    with pytest.raises(CheckpointError, match=said):
        training_batches(other, BATCH, 7, CPU).load_state_dict(state)


def test_the_place_in_a_data_set_is_refused_by_a_loader_and_by_another_order() -> None:
    state = training_batches(numbered(), BATCH, 7, CPU).state_dict()
    with pytest.raises(CheckpointError, match="trained on a data set; give it without the DataLoader"):
        training_batches(in_order(), BATCH, 7, CPU).load_state_dict(state)
    ordered = training_batches(Samples(numbered(), BATCH, shuffled=False), BATCH, 7, CPU)
    with pytest.raises(CheckpointError, match=r"shuffled, but now there are .*, in order"):
        ordered.load_state_dict(state)


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        (DataLoader(numbered(), BATCH, shuffle=True), None),
        (weighted(), None),
        (Doubled(numbered()), "Doubled is a custom loader"),
        (DataLoader(Stream()), "Stream gives samples in a private order"),
        (DataLoader(numbered(), sampler=range(3)), "range gives samples in a private order"),
        (DataLoader(numbered(), num_workers=1, persistent_workers=True), "keep private random states"),
        (
            DataLoader(numbered(), num_workers=1, worker_init_fn=print),
            "worker_init_fn may draw random numbers",
        ),
    ],
)
def test_an_exact_resume_is_promised_only_of_loaders_that_draw_by_torch_alone(
    loader: DataLoader[Any], said: str | None
) -> None:
    note = resume_note(loader)
    assert note is None if said is None else note is not None and said in note


def test_a_strategy_that_asks_by_number_reads_samples_in_its_own_process() -> None:
    loader = DataLoader(Noisy(), BATCH, shuffle=True, num_workers=2)
    found = DatasetSamples(map_style("the data set", loader, BATCH, "batch")).batch([5, 3])
    assert found.inputs.long().tolist() == [5, 3]


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        (Doubled(numbered()), r"a DataLoader \(Doubled\)"),
        (DataLoader(numbered(), sampler=RandomSampler(numbered(), num_samples=3)), "with a private order"),
        (DataLoader(numbered(), num_workers=1, worker_init_fn=print), "would never call the worker_init_fn"),
    ],
)
def test_a_strategy_that_asks_by_number_refuses_loaders_that_it_cannot_follow(
    loader: DataLoader[Any], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        map_style("the data set", loader, BATCH, "batch")


def test_a_fraction_for_validation_leaves_a_loader_its_settings() -> None:
    def collate(items: list[Any]) -> tuple[Tensor, Tensor]:
        return torch.stack([item for item, _ in items]) + 100, torch.zeros(len(items))

    loader = DataLoader(numbered(), 3, shuffle=True, collate_fn=collate, drop_last=True, timeout=0)
    learnt, held = split_samples(loader, 0.3, BATCH, 7)
    (seen,) = epochs(training_batches(learnt, BATCH, 7, CPU), 1)
    judged = [value for batch in validation_batches(held, BATCH, CPU)() for value in batch.inputs.tolist()]
    assert len(seen) == 15 and len(judged) == 7 and judged == sorted(judged)
    assert not set(seen) & set(judged) and min(seen + judged) >= 100
    with pytest.raises(UserError, match="Doubled, which chooses samples itself"):
        split_samples(Doubled(numbered()), 0.3, BATCH, 7)


def test_a_fraction_for_validation_leaves_a_sampler_its_generator() -> None:
    drawn = torch.Generator().manual_seed(3)
    loader = DataLoader(numbered(), 3, sampler=RandomSampler(numbered(), generator=drawn))
    learnt, _ = split_samples(loader, 0.3, BATCH, 7)
    assert isinstance(learnt, DataLoader) and generators_of(learnt) == [drawn]


def test_validation_draws_nothing_of_what_training_draws() -> None:
    batches = validation_batches(DataLoader(Noisy(), BATCH, shuffle=True), BATCH, CPU)
    before = torch.get_rng_state()
    first, second = ([batch.inputs.tolist() for batch in batches()] for _ in range(2))
    assert first == second and torch.get_rng_state().equal(before)


class Miscounted(Stream):
    """Samples that claim a wrong length."""

    def __init__(self, claimed: int) -> None:
        self.claimed = claimed

    def __len__(self) -> int:
        return self.claimed


@pytest.mark.parametrize(
    ("claimed", "said"),
    [
        (8, "more than 2 batches in epoch 0, but its length is 2"),
        (4 * SAMPLES, f"only {-(-SAMPLES // 4)} batches in epoch 0, but its length is {SAMPLES}"),
    ],
)
def test_a_loader_whose_length_is_wrong_is_said_once(claimed: int, said: str) -> None:
    batches = iter(training_batches(DataLoader(Miscounted(claimed), 4), 4, 7, CPU))
    with pytest.warns(RuntimeWarning, match=said) as told:
        list(islice(batches, 2 * SAMPLES))
    assert len(told) == 1 and told[0].filename == __file__
