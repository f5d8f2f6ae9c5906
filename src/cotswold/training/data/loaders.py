"""DataLoaders of a program, read as they are.

Knows: the random draws of torch's DataLoader, the position in an epoch. Does not know: modules, losses,
files.

A loader cannot start in the middle of an epoch, so a resumed run reads the epoch from its beginning up to the
saved position. The loader's draws from torch's random numbers depend on seed and epoch only; the states of
its private generators are in the checkpoints.
"""

from __future__ import annotations

import base64
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from cotswold.data import StoreDataset
from cotswold.errors import CheckpointError, UserError, outside_level
from cotswold.training.data.batches import batch_of, loaded, part_of_batch
from cotswold.training.strategies.base import WHOLE, Batch, Share

_SEEDS = 1 << 63
_ODD = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio, which makes the seeds of neighbouring epochs unrelated."""
_END = object()
_SAMPLERS = (RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, BatchSampler)
"""Samplers that draw only from torch's random numbers."""


class LoadedBatches:
    """The batches of a DataLoader in its order, epoch after epoch."""

    def __init__(
        self, loader: DataLoader[Any], seed: int, device: torch.device, share: Share = WHOLE
    ) -> None:
        """``share`` says which part of each batch is returned; the loader makes whole batches."""
        try:
            self._length = len(loader)
        except TypeError as error:
            raise UserError(
                f"the length of an epoch of {type(loader.dataset).__name__} is unknown; add a __len__ with "
                "the number of its samples"
            ) from error
        self._loader, self._seed, self._device, self._share = loader, seed, device, share
        self._epoch = self._step = 0
        self._generators = generators_of(loader)
        self._begun = [each.get_state() for each in self._generators]
        self.waited_seconds = 0.0
        self._is_length_wrong = False

    @property
    def epoch_steps(self) -> float:
        """Batches per epoch."""
        return max(self._length, 1)

    def __iter__(self) -> Iterator[Batch]:
        while True:
            draws = Draws(epoch_seed(self._seed, self._epoch))
            with draws.used():
                for generator, state in zip(self._generators, self._begun, strict=True):
                    generator.set_state(state)
                self._set_epoch()
                with torch.device("cpu"):  # torch draws a number there, despite the default device
                    items = iter(self._loader)
                with loaded():
                    item = next(items, _END)
                    for _ in range(self._step):
                        item = next(items, _END)
            if item is _END and self._step == 0:
                raise UserError(f"{type(self._loader.dataset).__name__} gives no batches; add samples")
            while item is not _END:
                batch = part_of_batch(batch_of(item, self._device), self._share)
                self._step += 1
                self._compare_length(self._step > self._length + self._loader.num_workers)
                yield batch
                began = time.monotonic()
                with draws.used(), loaded():
                    item = next(items, _END)
                self.waited_seconds += time.monotonic() - began
            if self._step < self._length and is_plain(self._loader):
                raise UserError(
                    f"{type(self._loader.dataset).__name__} ended epoch {self._epoch} after {self._step} of "
                    f"{self._length} batches: one of its samples raised StopIteration; give every sample"
                )
            self._compare_length(self._step + self._loader.num_workers < self._length)
            self._epoch, self._step = self._epoch + 1, 0
            self._begun = [each.get_state() for each in self._generators]

    def state_dict(self) -> dict[str, object]:
        """Return the position of the next batch, and the loader's generators at the beginning of the
        epoch.
        """
        return {
            "epoch": self._epoch,
            "step": self._step,
            **self._settings,
            "generators": [base64.b64encode(each.numpy().tobytes()).decode() for each in self._begun],
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Move to a position returned by `state_dict`; raises CheckpointError for another kind of loader."""
        if "samples" in state:
            raise CheckpointError(
                "the run was trained on a data set; give it without the DataLoader, with the same batch_size"
            )
        differing = [
            f"{name} {state[name]} there, {own} here"
            for name, own in self._settings.items()
            if state.get(name, own) != own
        ]
        if differing:
            raise CheckpointError(
                f"the run was trained with another DataLoader ({'; '.join(differing)}); give the same one"
            )
        self._epoch, self._step = position_in(state)
        kept = state.get("generators", [])
        if not isinstance(kept, list) or len(kept) != len(self._generators):
            raise CheckpointError(
                "the run's DataLoader had other generators than this one; give the same one"
            )
        try:
            self._begun = [_state(each) for each in kept]
            for generator, begun in zip(self._generators, self._begun, strict=True):
                generator.set_state(begun)
        except (ValueError, TypeError, RuntimeError) as error:
            raise CheckpointError(
                "the checkpoint lacks the state of the DataLoader's generator at the start of the epoch "
                f"({error}); resume from another checkpoint"
            ) from error

    @property
    def _settings(self) -> dict[str, object]:
        """Properties in which a loader must match the run's."""
        loader = self._loader
        sampler = loader.sampler if type(loader.batch_sampler) is BatchSampler else loader.batch_sampler
        return {
            "batches": self._length,
            "batch_size": loader.batch_size,
            "drop_last": loader.drop_last,
            "sampler": type(sampler).__name__,
        }

    def _compare_length(self, is_wrong: bool) -> None:
        """Warn once of a loader with a wrong length; each worker may make one batch more or less."""
        if not is_wrong or self._is_length_wrong:
            return
        self._is_length_wrong = True
        found = f"more than {self._length}" if self._step > self._length else f"only {self._step}"
        workers = (
            "; if each worker gives all samples, divide them (torch.utils.data.get_worker_info)"
            if self._loader.num_workers > 1 and isinstance(self._loader.dataset, IterableDataset)
            else ""
        )
        warnings.warn(
            f"the DataLoader gave {found} batches in epoch {self._epoch}, but its length is {self._length}: "
            f"epochs and the learning rate schedule use the length{workers}",
            RuntimeWarning,
            stacklevel=outside_level("cotswold", "torch"),
        )

    def _set_epoch(self) -> None:
        """Call `set_epoch` of the data set and of its samplers, if they define it."""
        for each in (self._loader.dataset, self._loader.sampler, self._loader.batch_sampler):
            set_epoch = getattr(each, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(self._epoch)


class Draws:
    """The random state of torch's CPU generator for a loader's draws, separate from a module's draws."""

    def __init__(self, seed: int) -> None:
        self._state = torch.Generator("cpu").manual_seed(seed).get_state()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Replace the process's random state while the context is open."""
        outer = torch.get_rng_state()
        torch.set_rng_state(self._state)
        try:
            yield
        finally:
            self._state = torch.get_rng_state()
            torch.set_rng_state(outer)


def generators_of(loader: DataLoader[Any]) -> list[torch.Generator]:
    """Return the generators of a loader and its samplers, without duplicates."""
    inner = getattr(loader.batch_sampler, "sampler", None)
    found = [
        getattr(each, "generator", None) for each in (loader, loader.sampler, loader.batch_sampler, inner)
    ]
    return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())


def is_plain(loader: DataLoader[Any]) -> bool:
    """Return True if a loader gives all samples of a map-style data set once, in order or shuffled."""
    sampler = loader.sampler
    whole = type(sampler) is SequentialSampler or (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.num_samples == len(sampler.data_source)
    )
    return (
        type(loader) is DataLoader
        and not isinstance(loader.dataset, IterableDataset)
        and (loader.batch_sampler is None or type(loader.batch_sampler) is BatchSampler)
        and loader.batch_size is not None  # otherwise the user gave a batch sampler, with a private sampler
        and whole
    )


def part_of(loader: DataLoader[Any], indices: Sequence[int], *, held: bool) -> DataLoader[Any]:
    """Return a plain loader with the same settings over part of its data set; in order if ``held`` out."""
    assert is_plain(loader), "other loaders choose their samples"
    part, sampler = Subset(loader.dataset, indices), None
    if not held and isinstance(loader.sampler, RandomSampler):
        sampler = RandomSampler(part, generator=loader.sampler.generator)
    return DataLoader(
        part,
        loader.batch_size,
        sampler=sampler,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        drop_last=loader.drop_last and not held,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=None if held else loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )


def resume_note(loader: DataLoader[Any]) -> str | None:
    """Return a sentence with the reasons if a resumed run may read other batches, otherwise None."""
    reasons = []
    if type(loader) is not DataLoader:
        reasons.append(f"{type(loader).__name__} is a custom loader")
    if isinstance(loader.dataset, IterableDataset) and not isinstance(loader.dataset, StoreDataset):
        reasons.append(f"{type(loader.dataset).__name__} gives samples in a private order")
    elif type(loader.batch_sampler) not in (BatchSampler, type(None)):
        reasons.append(f"{type(loader.batch_sampler).__name__} is a custom batch sampler")
    elif type(loader.sampler) not in _SAMPLERS and not isinstance(loader.dataset, IterableDataset):
        reasons.append(f"{type(loader.sampler).__name__} gives samples in a private order")
    if loader.persistent_workers:
        reasons.append("persistent workers keep private random states")
    if loader.worker_init_fn is not None:
        reasons.append("worker_init_fn may draw random numbers")
    if not reasons:
        return None
    return (
        f"an exact resume is not guaranteed: {', '.join(reasons)}. A resumed run reads its epoch again from "
        "the beginning, and needs the same batches; a map-style data set without a DataLoader has no such "
        "condition"
    )


def epoch_seed(seed: int, epoch: int) -> int:
    """Return the seed of an epoch."""
    return (seed + _ODD * (epoch + 2)) % _SEEDS


def position_in(state: Mapping[str, object]) -> tuple[int, int]:
    """Return epoch and step of a state; raises CheckpointError without them."""
    epoch, step = state.get("epoch"), state.get("step")
    if not isinstance(epoch, int) or not isinstance(step, int) or min(epoch, step) < 0:
        raise CheckpointError("the checkpoint lacks its position in the data set")
    return epoch, step


def _state(text: object) -> torch.Tensor:
    if not isinstance(text, str):
        raise TypeError(f"its state is a {type(text).__name__}")
    return torch.frombuffer(bytearray(base64.b64decode(text, validate=True)), dtype=torch.uint8)
