"""Batches from a data set or a DataLoader that a program gives.

Knows: what torch calls a map-style and an iterable data set, the order of samples, the place in it. Does not
know: modules, losses, files.

A map-style data set is drawn in an order that depends on the seed and the epoch alone, so that a run goes on
at any place at once. An iterable one, or a DataLoader with a sampler of its own, is read again from the
beginning of the epoch to the place where the run stood.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)

from cotswold.data import StoreDataset
from cotswold.errors import CheckpointError, UserError
from cotswold.training.strategy import Batch, Batches

Given = Dataset[Any] | DataLoader[Any]
_SEEDS = 1 << 63
_ODD = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio: the seeds of neighbouring epochs have nothing in common."""
_END = object()


@dataclass(frozen=True)
class Samples:
    """A map-style data set and how its samples become batches.

    ``whole``: samples that make no whole batch at the end of an epoch are left out.
    """

    dataset: Dataset[Any]
    batch_size: int
    shuffled: bool = True
    collate: Callable[[list[Any]], Any] = default_collate
    workers: int = 0
    whole: bool = False

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]  # map-style data sets have a length

    def loader(self, batches: list[list[int]], seed: int = 0) -> DataLoader[Any]:
        """The batches of these samples, in this order."""
        return DataLoader(
            self.dataset,
            batch_sampler=batches,
            collate_fn=self.collate,
            num_workers=self.workers,
            generator=torch.Generator("cpu").manual_seed(seed),
        )

    def subset(self, indices: Sequence[int]) -> Samples:
        """Some of the samples."""
        return replace(self, dataset=Subset(self.dataset, indices))

    def numbers(self, chosen: Sequence[int]) -> list[int]:
        """The numbers that the given data set has for some of the samples."""
        if type(self.dataset) is Subset:
            return [int(self.dataset.indices[each]) for each in chosen]
        return list(chosen)

    def in_order(self) -> DataLoader[Any]:
        """All of them, once."""
        ranges = (
            range(start, len(self))[: self.batch_size] for start in range(0, len(self), self.batch_size)
        )
        return self.loader([list(each) for each in ranges])


def data_set(given: object) -> Given:
    """What was given as a data set; a tuple of two tensors, inputs and targets, becomes one.

    Raises UserError for what is none.
    """
    if isinstance(given, tuple | list) and given and all(isinstance(each, Tensor) for each in given):
        if len(given) != 2 or len(given[0]) != len(given[1]):
            lengths = ", ".join(str(len(each)) for each in given)
            raise UserError(
                f"a data set of tensors is inputs and targets, as many of each; these are {lengths} long"
            )
        return TensorDataset(*given)
    if isinstance(given, DataLoader | IterableDataset):
        return given
    if isinstance(given, tuple | str | dict) or not (
        hasattr(given, "__getitem__") and hasattr(given, "__len__")
    ):
        raise UserError(
            f"a {type(given).__name__} is no data set; give a torch Dataset with __getitem__ and __len__, an "
            "IterableDataset, a DataLoader, or (inputs, targets), two tensors"
        )
    return given  # type: ignore[return-value]  # all that torch asks of a map-style data set


def makes_batches(given: Given) -> bool:
    """Whether what was given hands out batches, not samples."""
    return isinstance(given, DataLoader) or (isinstance(given, StoreDataset) and given.batch_size is not None)


def samples_of(given: Given, batch_size: int) -> Samples | None:
    """The map-style data set that was given, alone or in a DataLoader of torch's own samplers; None for an
    iterable one or another sampler, which must be read as they are.

    A DataLoader keeps its own batch size, order, collate function, number of workers and drop_last.
    """
    if not isinstance(given, DataLoader):
        return None if isinstance(given, IterableDataset) else Samples(given, batch_size)
    sampler = given.sampler
    plain = type(sampler) is SequentialSampler or (type(sampler) is RandomSampler and not sampler.replacement)
    if (
        isinstance(given.dataset, IterableDataset)
        or type(given.batch_sampler) is not BatchSampler
        or given.batch_size is None  # the batch sampler was given, and has a sampler of its own
        or not plain
    ):
        return None
    shuffled = type(sampler) is RandomSampler
    return Samples(
        given.dataset, given.batch_size, shuffled, given.collate_fn, given.num_workers, given.drop_last
    )


def loader_of(given: Given, batch_size: int) -> DataLoader[Any]:
    """A DataLoader of what is read as it is."""
    if isinstance(given, DataLoader):
        return given
    return DataLoader(given, batch_size=None if makes_batches(given) else batch_size)


def split(samples: Samples, fraction: float, seed: int) -> tuple[Samples, Samples]:
    """The samples for training, and a fraction drawn by the seed for validation; raises UserError where
    nothing would be left for one of them."""
    count = round(fraction * len(samples))
    if not 0 < count < len(samples):
        raise UserError(
            f"a validation of {fraction:g} takes {count} of {len(samples)} samples; give one that "
            "leaves some for both, or a data set of its own"
        )
    drawn = torch.randperm(len(samples), generator=_generator(seed, -1), device="cpu").tolist()
    return samples.subset(sorted(drawn[count:])), samples.subset(sorted(drawn[:count]))


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
        whole, left = divmod(len(self._samples), self._batch)
        return whole + (left > 0 and not self._samples.whole)

    def __iter__(self) -> Iterator[Batch]:
        end = int(self.epoch_steps) * self._batch
        while True:
            order = self._order()
            starts = range(self._step * self._batch, end, self._batch)
            loader = self._samples.loader(
                [order[start : start + self._batch] for start in starts], _seed(self._seed, self._epoch)
            )
            with torch.device("cpu"):  # torch draws a number there, whatever the program's default is
                items = iter(loader)
            for start in starts:
                batch = self._waiting(items)
                batch = replace(batch, numbers=self._samples.numbers(order[start : start + self._batch]))
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
            "drop_last": self._samples.whole,
        }

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Go to a place that `state_dict` named; raises CheckpointError for a data set of another length."""
        own = {**self.state_dict(), "epoch": state.get("epoch"), "step": state.get("step")}
        if state != own:
            raise CheckpointError(
                f"the run learnt from {state.get('samples')} samples in batches of "
                f"{state.get('batch_size')} (drop_last={state.get('drop_last')}), and there are "
                f"{len(self._samples)} in batches of {self._batch} (drop_last={self._samples.whole}) now; "
                "give the same data set and validation"
            )
        self._epoch, self._step = _place(state)

    def _order(self) -> list[int]:
        count = len(self._samples)
        if not self._samples.shuffled:
            return list(range(count))
        drawn = _generator(self._seed, self._epoch)
        order: list[int] = torch.randperm(count, generator=drawn, device="cpu").tolist()
        return order

    def _waiting(self, items: Iterator[Any]) -> Batch:
        began = time.monotonic()
        batch = batch_of(next(items), self._device)
        self.waited_seconds += time.monotonic() - began
        return batch


class LoadedBatches:
    """The batches of a DataLoader as it gives them, epoch after epoch.

    Whatever it draws at random when an epoch begins, it draws by the seed and the epoch.
    """

    def __init__(self, loader: DataLoader[Any], seed: int, device: torch.device) -> None:
        try:
            self._length = len(loader)
        except TypeError as error:
            raise UserError(
                f"nobody knows how long an epoch of {type(loader.dataset).__name__} is; give it a __len__, "
                "the number of its samples"
            ) from error
        self._loader, self._seed, self._device = loader, seed, device
        self._epoch = self._step = 0
        self.waited_seconds = 0.0

    @property
    def epoch_steps(self) -> float:
        """Batches in one epoch."""
        return max(self._length, 1)

    def __iter__(self) -> Iterator[Batch]:
        while True:
            with torch.random.fork_rng(devices=[]), torch.device("cpu"):
                torch.manual_seed(_seed(self._seed, self._epoch))
                self._tell_epoch()
                items = iter(self._loader)
                item = next(items, _END)
                for _ in range(self._step):
                    item = next(items, _END)
            if item is _END and self._step == 0:
                raise UserError(f"{type(self._loader.dataset).__name__} gives no batches; give it samples")
            while item is not _END:
                batch = batch_of(item, self._device)
                self._step += 1
                yield batch
                began = time.monotonic()
                item = next(items, _END)
                self.waited_seconds += time.monotonic() - began
            self._epoch, self._step = self._epoch + 1, 0

    def state_dict(self) -> dict[str, object]:
        """The place of the next batch."""
        return {"epoch": self._epoch, "step": self._step}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Go to a place that `state_dict` named."""
        self._epoch, self._step = _place(state)

    def _tell_epoch(self) -> None:
        """Have the data set, or what orders its samples, go to this epoch, where it can be told."""
        for each in (self._loader.dataset, self._loader.sampler, self._loader.batch_sampler):
            told = getattr(each, "set_epoch", None)
            if callable(told):
                told(self._epoch)


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
        if given is not None:
            samples = given if isinstance(given, Samples) else samples_of(given, batch_size)
            loader = loader_of(given, batch_size) if samples is None else samples.in_order()  # type: ignore[arg-type]  # Samples are not None
            for item in loader:
                yield batch_of(item, device)

    return batches


def batch_of(item: object, device: torch.device) -> Batch:
    """What a DataLoader gives, as a batch on a device; raises UserError where that is no pair of tensors."""
    if not isinstance(item, tuple | list) or len(item) != 2 or not all(isinstance(x, Tensor) for x in item):
        raise UserError(
            f"a data set must give pairs (input, target) that make two tensors; this one gives {_kind(item)}"
        )
    inputs, targets = item
    if inputs.is_meta or targets.is_meta:
        raise UserError(
            "the data set gives tensors on the device meta, which have no values; give it samples"
        )
    return Batch(inputs.to(device), targets.to(device))


def _kind(item: object) -> str:
    if isinstance(item, tuple | list):
        return (
            f"a {type(item).__name__} of {', '.join(type(each).__name__ for each in item[:4]) or 'nothing'}"
        )
    return f"a {type(item).__name__}"


def _place(state: dict[str, object]) -> tuple[int, int]:
    epoch, step = state.get("epoch"), state.get("step")
    if not isinstance(epoch, int) or not isinstance(step, int) or min(epoch, step) < 0:
        raise CheckpointError("the checkpoint does not say where in the data set it was taken")
    return epoch, step


def _seed(seed: int, epoch: int) -> int:
    return (seed + _ODD * (epoch + 2)) % _SEEDS


def _generator(seed: int, epoch: int) -> torch.Generator:
    return torch.Generator("cpu").manual_seed(_seed(seed, epoch))
