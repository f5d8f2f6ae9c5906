"""Batches from a data set or DataLoader of a program.

Knows: torch's map-style and iterable data sets, the order of samples, the position in it. Does not know:
modules, losses, files.

The order of a map-style data set depends only on the seed and the epoch, so a run can resume at any position
immediately. An iterable data set and a DataLoader are read as they are (`loaders`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, default_collate

from cotswold.data import StoreDataset
from cotswold.errors import CheckpointError, UserError
from cotswold.training.data.batches import batch_of, collated, loaded
from cotswold.training.data.columns import columns
from cotswold.training.data.loaders import Draws, LoadedBatches, epoch_seed, is_plain, part_of, position_in
from cotswold.training.strategies.base import WHOLE, Batch, Batches, Share

UserData = Dataset[Any] | DataLoader[Any]


@dataclass(frozen=True)
class Samples:
    """A map-style data set, its batch size and its collate function.

    If ``shuffled``, every epoch has a different order.
    """

    dataset: Dataset[Any]
    batch_size: int
    shuffled: bool = True
    collate: Callable[[list[Any]], Any] = default_collate

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]  # map-style data sets have a length

    def items(self, numbers: Sequence[int]) -> Any:
        """Return the collated samples with these indices, read in this process."""
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
        """Return a subset of the samples."""
        return replace(self, dataset=Subset(self.dataset, indices))

    def numbers(self, chosen: Sequence[int]) -> list[int]:
        """Return the indices in the original data set of some samples."""
        if type(self.dataset) is Subset:
            return [int(self.dataset.indices[each]) for each in chosen]
        return list(chosen)

    def iterate(self, share: Share = WHOLE) -> Iterator[Any]:
        """Yield all batches once, in order; of several replicas each takes its turn."""
        first, step = share.index * self.batch_size, share.count * self.batch_size
        for start in range(first, len(self), step):
            yield self.items(range(start, min(start + self.batch_size, len(self))))


def data_set(given: object) -> UserData:
    """Return the data set of a program's argument; tensors or arrays become a data set (`columns`).

    Raises UserError for another type.
    """
    if isinstance(given, tuple | list):
        found = columns(given)
        if found is not None:
            return found
    if isinstance(given, DataLoader | IterableDataset):
        return given
    if hasattr(given, "columns") and hasattr(given, "dtypes"):
        raise UserError(
            f"a {type(given).__name__} of columns is not a data set of tensors; give (inputs, targets) as "
            "arrays, such as frame[[...]].to_numpy(), or prepare it with cotswold.data.table"
        )
    if isinstance(given, tuple | str | dict) or not (
        hasattr(given, "__getitem__") and hasattr(given, "__len__")
    ):
        raise UserError(
            f"a {type(given).__name__} is not a data set; give a torch Dataset with __getitem__ and "
            "__len__, an IterableDataset, a DataLoader, or (inputs, targets) as tensors or NumPy arrays; "
            "inputs may be a tuple or a dict of these"
        )
    return given  # type: ignore[return-value]  # all that torch asks of a map-style data set


def yields_batches(given: UserData) -> bool:
    """Return True if the data set yields batches instead of samples."""
    return isinstance(given, DataLoader) or (isinstance(given, StoreDataset) and given.batch_size is not None)


def samples_of(given: UserData, batch_size: int) -> Samples | None:
    """Return a map-style data set as `Samples`; None for iterable data sets and DataLoaders."""
    return None if isinstance(given, DataLoader | IterableDataset) else Samples(given, batch_size)


def epoch_samples(given: UserData | Samples) -> int | None:
    """Return the number of samples per epoch; None if the data set or loader chooses them."""
    if isinstance(given, DataLoader):
        return len(given.dataset) if is_plain(given) else None  # type: ignore[arg-type]  # map-style
    return None if isinstance(given, IterableDataset) else len(given)  # type: ignore[arg-type]  # map-style


def loader_of(given: UserData, batch_size: int) -> DataLoader[Any]:
    """Return a DataLoader for a data set that is read as it is."""
    if isinstance(given, DataLoader):
        return given
    return DataLoader(given, batch_size=None if yields_batches(given) else batch_size)


Part = TypeVar("Part", Samples, DataLoader[Any])


def split(whole: Part, fraction: float, seed: int) -> tuple[Part, Part]:
    """Return the training samples, and a fraction drawn by the seed for validation.

    Raises UserError if either would be empty, and for a DataLoader that chooses samples itself.
    """
    if isinstance(whole, DataLoader) and not is_plain(whole):
        raise UserError(
            f"a validation fraction cannot be taken from this {type(whole).__name__}, which chooses "
            "samples itself; give a separate validation data set"
        )
    samples = epoch_samples(whole)
    assert samples is not None, "map-style"
    count = round(fraction * samples)
    if not 0 < count < samples:
        raise UserError(
            f"validation={fraction:g} takes {count} of {samples} samples; use a fraction that "
            "leaves samples for both, or a separate data set"
        )
    drawn = torch.randperm(samples, generator=_generator(seed, -1), device="cpu").tolist()
    learnt, held = sorted(drawn[count:]), sorted(drawn[:count])
    if isinstance(whole, DataLoader):
        return part_of(whole, learnt, held=False), part_of(whole, held, held=True)
    return whole.subset(learnt), whole.subset(held)


def split_samples(
    dataset: UserData, validation: UserData | float | None, batch_size: int, seed: int
) -> tuple[UserData | Samples, UserData | Samples | None]:
    """Return the training samples and the validation samples; a DataLoader stays a DataLoader.

    Raises UserError for an empty data set, and for a fraction that cannot be drawn.
    """
    samples = samples_of(dataset, batch_size)
    if epoch_samples(dataset) == 0:
        raise UserError("the data set is empty; give one with samples")
    if not isinstance(validation, float | int):
        return dataset if samples is None else samples, validation
    if not 0 < validation < 1:
        raise UserError(f"validation must be a fraction between 0 and 1, or a data set, got {validation}")
    if isinstance(dataset, DataLoader):
        return split(dataset, validation, seed)
    if samples is None:
        raise UserError(
            "a validation fraction can be drawn from a map-style data set only; give a separate "
            "validation data set"
        )
    return split(samples, validation, seed)


class SampledBatches:
    """Endless batches of a map-style data set, in a new order each epoch; the last of an epoch may be
    smaller.
    """

    def __init__(self, samples: Samples, seed: int, device: torch.device, share: Share = WHOLE) -> None:
        """``share`` says which part of each batch is read."""
        self._samples, self._seed, self._device, self._share = samples, seed, device, share
        self._batch = min(samples.batch_size, len(samples))
        self._epoch = self._step = 0
        self.waited_seconds = 0.0

    @property
    def epoch_steps(self) -> float:
        """Batches per epoch."""
        return -(-len(self._samples) // self._batch)

    def __iter__(self) -> Iterator[Batch]:
        while True:
            order = self._order()
            for start in range(self._step * self._batch, len(order), self._batch):
                began = time.monotonic()
                whole = order[start : start + self._batch]
                first, stop = self._share.bounds(len(whole))
                chosen = whole[first:stop] or whole[:1]
                found = batch_of(self._samples.items(chosen), self._device)
                batch = replace(found, numbers=self._samples.numbers(chosen), is_idle=first == stop)
                self.waited_seconds += time.monotonic() - began
                self._step += 1
                yield batch
            self._epoch, self._step = self._epoch + 1, 0

    def state_dict(self) -> dict[str, object]:
        """Return the position of the next batch."""
        return {
            "epoch": self._epoch,
            "step": self._step,
            "samples": len(self._samples),
            "batch_size": self._batch,
            "shuffled": self._samples.shuffled,
        }

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Move to a position returned by `state_dict`; raises CheckpointError for a data set of another
        length.
        """
        own = self.state_dict()
        if any(state.get(name) != own[name] for name in ("samples", "batch_size", "shuffled")):
            raise CheckpointError(
                f"the run was trained on {_described(state)}, but now there are {_described(own)}; give the "
                "same data set and validation"
            )
        self._epoch, self._step = position_in(state)

    def _order(self) -> list[int]:
        count = len(self._samples)
        if not self._samples.shuffled:
            return list(range(count))
        drawn = _generator(self._seed, self._epoch)
        order: list[int] = torch.randperm(count, generator=drawn, device="cpu").tolist()
        return order


def _described(state: Mapping[str, object]) -> str:
    """Return a description of the samples of a state."""
    if "samples" not in state:
        return "the batches of a DataLoader or an iterable data set"
    order = "shuffled" if state["shuffled"] else "in order"
    return f"{state['samples']} samples in batches of {state.get('batch_size')}, {order}"


def training_batches(
    given: UserData | Samples, batch_size: int, seed: int, device: torch.device, share: Share = WHOLE
) -> Batches:
    """Return endless batches of a program's data set or loader, or a replica's part of each batch.

    Of a map-style data set only that part is read. A loader or an iterable data set makes whole batches on
    every replica, so it must make equal ones there.
    """
    samples = given if isinstance(given, Samples) else samples_of(given, batch_size)
    if samples is not None:
        return SampledBatches(samples, seed, device, share)
    assert not isinstance(given, Samples), "samples_of does not convert them"
    return LoadedBatches(loader_of(given, batch_size), seed, device, share)


def validation_batches(
    given: UserData | Samples | None, batch_size: int, device: torch.device, share: Share = WHOLE
) -> Callable[[], Iterable[Batch]]:
    """Return a function that iterates over all batches in order; no batches if ``given`` is None.

    Replicas take whole batches in turn.
    """

    def batches() -> Iterator[Batch]:
        if given is None:
            return
        draws = Draws(0)  # validations must not change the draws of training
        with draws.used():
            items = iter(_in_order(given, batch_size, share))
        while True:
            with draws.used(), loaded():
                item = next(items, None)
            if item is None:
                return
            yield batch_of(item, device)

    return batches


def _in_order(given: UserData | Samples, batch_size: int, share: Share) -> Iterable[Any]:
    """Return a replica's batches in the DataLoader's order, or in the order of the indices."""
    samples = given if isinstance(given, Samples) else samples_of(given, batch_size)
    if samples is not None:
        return samples.iterate(share)
    assert not isinstance(given, Samples), "samples_of does not convert them"
    return islice(loader_of(given, batch_size), share.index, None, share.count)


def _generator(seed: int, epoch: int) -> torch.Generator:
    return torch.Generator("cpu").manual_seed(epoch_seed(seed, epoch))
