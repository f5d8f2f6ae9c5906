"""Batches from a data set or a DataLoader that a program gives.

Knows: what torch calls a map-style and an iterable data set, the order of samples, the place in it. Does not
know: modules, losses, files.

A map-style data set is drawn in an order that depends on the seed and the epoch alone, so that a run goes on
at any place at once. An iterable one and a DataLoader are read as they are (`loaders`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, default_collate

from cotswold.data import StoreDataset
from cotswold.errors import CheckpointError, UserError
from cotswold.training.data.batches import batch_of, collated, loaded
from cotswold.training.data.columns import columns
from cotswold.training.data.loaders import Draws, LoadedBatches, epoch_seed, is_plain, part_of, place_in
from cotswold.training.strategies.base import Batch, Batches

Given = Dataset[Any] | DataLoader[Any]


@dataclass(frozen=True)
class Samples:
    """A map-style data set and how its samples become batches.

    ``shuffled``: every epoch has an order of its own.
    """

    dataset: Dataset[Any]
    batch_size: int
    shuffled: bool = True
    collate: Callable[[list[Any]], Any] = default_collate

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]  # map-style data sets have a length

    def items(self, numbers: Sequence[int]) -> Any:
        """The samples of these numbers, collated, read in this process."""
        together = getattr(self.dataset, "__getitems__", None)
        try:
            if callable(together):
                found = together(list(numbers))
            else:
                found = [self.dataset[number] for number in numbers]
        except StopIteration as error:
            raise UserError(
                f"{type(self.dataset).__name__} raised StopIteration for one of the samples {numbers[0]} to "
                f"{numbers[-1]}; give every sample from 0 to {len(self) - 1}"
            ) from error
        with collated(found, numbers):
            return self.collate(found)

    def subset(self, indices: Sequence[int]) -> Samples:
        """Some of the samples."""
        return replace(self, dataset=Subset(self.dataset, indices))

    def numbers(self, chosen: Sequence[int]) -> list[int]:
        """The numbers that the given data set has for some of the samples."""
        if type(self.dataset) is Subset:
            return [int(self.dataset.indices[each]) for each in chosen]
        return list(chosen)

    def in_order(self) -> Iterator[Any]:
        """All of them, once."""
        for start in range(0, len(self), self.batch_size):
            yield self.items(range(start, min(start + self.batch_size, len(self))))


def data_set(given: object) -> Given:
    """What was given as a data set; inputs and targets that are tensors or arrays become one (`columns`).

    Raises UserError for what is none.
    """
    if isinstance(given, tuple | list):
        found = columns(given)
        if found is not None:
            return found
    if isinstance(given, DataLoader | IterableDataset):
        return given
    if isinstance(given, tuple | str | dict) or not (
        hasattr(given, "__getitem__") and hasattr(given, "__len__")
    ):
        raise UserError(
            f"a {type(given).__name__} is no data set; give a torch Dataset with __getitem__ and __len__, an "
            "IterableDataset, a DataLoader, or (inputs, targets), tensors or NumPy arrays; inputs may be a "
            "tuple or a dict of these"
        )
    return given  # type: ignore[return-value]  # all that torch asks of a map-style data set


def makes_batches(given: Given) -> bool:
    """Whether what was given hands out batches, not samples."""
    return isinstance(given, DataLoader) or (isinstance(given, StoreDataset) and given.batch_size is not None)


def samples_of(given: Given, batch_size: int) -> Samples | None:
    """The map-style data set that was given; None for an iterable one and a DataLoader, which are read as
    they are."""
    return None if isinstance(given, DataLoader | IterableDataset) else Samples(given, batch_size)


def epoch_samples(given: Given | Samples) -> int | None:
    """Samples in an epoch of what was given; None if it chooses them itself."""
    if isinstance(given, DataLoader):
        return len(given.dataset) if is_plain(given) else None  # type: ignore[arg-type]  # as a map-style one
    return None if isinstance(given, IterableDataset) else len(given)  # type: ignore[arg-type]  # as above


def loader_of(given: Given, batch_size: int) -> DataLoader[Any]:
    """A DataLoader of what is read as it is."""
    if isinstance(given, DataLoader):
        return given
    return DataLoader(given, batch_size=None if makes_batches(given) else batch_size)


Part = TypeVar("Part", Samples, DataLoader[Any])


def split(whole: Part, fraction: float, seed: int) -> tuple[Part, Part]:
    """The samples for training, and a fraction drawn by the seed for validation; raises UserError where
    nothing would be left for one of them, and for a DataLoader that chooses samples itself."""
    if isinstance(whole, DataLoader) and not is_plain(whole):
        raise UserError(
            f"a fraction for validation cannot be taken from this {type(whole).__name__}, which chooses "
            "samples itself; give the validation data as a data set of their own"
        )
    samples = epoch_samples(whole)
    assert samples is not None, "map-style"
    count = round(fraction * samples)
    if not 0 < count < samples:
        raise UserError(
            f"a validation of {fraction:g} takes {count} of {samples} samples; give one that "
            "leaves some for both, or a data set of its own"
        )
    drawn = torch.randperm(samples, generator=_generator(seed, -1), device="cpu").tolist()
    learnt, held = sorted(drawn[count:]), sorted(drawn[:count])
    if isinstance(whole, DataLoader):
        return part_of(whole, learnt, held=False), part_of(whole, held, held=True)
    return whole.subset(learnt), whole.subset(held)


def split_samples(
    dataset: Given, validation: Given | float | None, batch_size: int, seed: int
) -> tuple[Given | Samples, Given | Samples | None]:
    """The samples to train on, and those for validation; a DataLoader stays one.

    Raises UserError for an empty data set, and for a fraction that cannot be drawn.
    """
    samples = samples_of(dataset, batch_size)
    if epoch_samples(dataset) == 0:
        raise UserError("the data set is empty; give one with samples")
    if not isinstance(validation, float | int):
        return dataset if samples is None else samples, validation
    if not 0 < validation < 1:
        raise UserError(
            f"validation={validation} is no fraction, which lies between 0 and 1; give one, or a data set"
        )
    if isinstance(dataset, DataLoader):
        return split(dataset, validation, seed)
    if samples is None:
        raise UserError(
            "a fraction for validation can be drawn from a map-style data set only; give the validation data "
            "as a data set of their own"
        )
    return split(samples, validation, seed)


class SampledBatches:
    """Batches of a map-style data set, over and over, in a new order each epoch; the last one of an epoch
    may be smaller."""

    def __init__(self, samples: Samples, seed: int, device: torch.device) -> None:
        self._samples, self._seed, self._device = samples, seed, device
        self._batch = min(samples.batch_size, len(samples))
        self._epoch = self._step = 0
        self.waited_seconds = 0.0

    @property
    def epoch_steps(self) -> float:
        """Batches in one epoch."""
        return -(-len(self._samples) // self._batch)

    def __iter__(self) -> Iterator[Batch]:
        while True:
            order = self._order()
            for start in range(self._step * self._batch, len(order), self._batch):
                began = time.monotonic()
                chosen = order[start : start + self._batch]
                found = batch_of(self._samples.items(chosen), self._device)
                batch = replace(found, numbers=self._samples.numbers(chosen))
                self.waited_seconds += time.monotonic() - began
                self._step += 1
                yield batch
            self._epoch, self._step = self._epoch + 1, 0

    def state_dict(self) -> dict[str, object]:
        """The place of the next batch."""
        return {
            "epoch": self._epoch,
            "step": self._step,
            "samples": len(self._samples),
            "batch_size": self._batch,
            "shuffled": self._samples.shuffled,
        }

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Go to a place that `state_dict` named; raises CheckpointError for a data set of another length."""
        own = self.state_dict()
        if any(state.get(name) != own[name] for name in ("samples", "batch_size", "shuffled")):
            raise CheckpointError(
                f"the run learnt from {_described(state)}, and now there are {_described(own)}; give the "
                "same data set and validation"
            )
        self._epoch, self._step = place_in(state)

    def _order(self) -> list[int]:
        count = len(self._samples)
        if not self._samples.shuffled:
            return list(range(count))
        drawn = _generator(self._seed, self._epoch)
        order: list[int] = torch.randperm(count, generator=drawn, device="cpu").tolist()
        return order


def _described(state: Mapping[str, object]) -> str:
    """What a state says of its samples."""
    if "samples" not in state:
        return "the batches of a DataLoader or an iterable data set"
    order = "shuffled" if state["shuffled"] else "in order"
    return f"{state['samples']} samples in batches of {state.get('batch_size')}, {order}"


def training_batches(given: Given | Samples, batch_size: int, seed: int, device: torch.device) -> Batches:
    """Endless batches of whatever was given."""
    samples = given if isinstance(given, Samples) else samples_of(given, batch_size)
    if samples is not None:
        return SampledBatches(samples, seed, device)
    assert not isinstance(given, Samples), "they are not None"
    return LoadedBatches(loader_of(given, batch_size), seed, device)


def validation_batches(
    given: Given | Samples | None, batch_size: int, device: torch.device
) -> Callable[[], Iterable[Batch]]:
    """Gives all batches of whatever was given, in order, each time anew; none where nothing was."""

    def batches() -> Iterator[Batch]:
        if given is None:
            return
        draws = Draws(0)  # training draws the same, however often it is validated
        with draws.used():
            items = iter(_in_order(given, batch_size))
        while True:
            with draws.used(), loaded():
                item = next(items, None)
            if item is None:
                return
            yield batch_of(item, device)

    return batches


def _in_order(given: Given | Samples, batch_size: int) -> Iterable[Any]:
    """All batches of what was given, as a DataLoader gives them or in the order of the numbers."""
    samples = given if isinstance(given, Samples) else samples_of(given, batch_size)
    if samples is not None:
        return samples.in_order()
    assert not isinstance(given, Samples), "they are not None"
    return loader_of(given, batch_size)


def _generator(seed: int, epoch: int) -> torch.Generator:
    return torch.Generator("cpu").manual_seed(epoch_seed(seed, epoch))
