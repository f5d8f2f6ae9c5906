"""Outputs of frozen stacks, kept for every training sample instead of being computed in each epoch.

Knows: the memory and disk space that are free, measured times, which samples have been seen in a phase. Does
not know: what frozen stacks compute, which stack is trained.

Our kernels compute the same bits of a sample at every place in a batch, so kept outputs are those that the
stacks would compute again. Nothing is kept for augmented samples, which differ in each epoch.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotswold.host import available_bytes
from cotswold.kernels.available import has_cpu_kernel
from cotswold.ops import images_first, images_last
from cotswold.training.strategies.base import Batch

MEMORY_FRACTION = 0.5
"""The fraction of free memory that kept outputs of all ranks may take."""
DISK_FRACTION = 0.5
"""The fraction of the free disk space that kept outputs of all ranks may take."""
VALIDATION_BYTES = 64 << 20
"""Outputs for validation samples up to this size stay in memory between validations."""

Frozen = Callable[[Tensor], Tensor]
"""Computes the output of the frozen stacks."""
Versions = Callable[[], tuple[int, ...]]
"""Returns numbers that change if the weights of the frozen stacks are written."""


@dataclass(frozen=True)
class RunLimits:
    """Limits of a run: its samples, where it may write, the ranks that decide together.

    ``largest`` is an all-reduce (max) of integers, ``record`` writes an event, and ``fetch`` returns training
    samples by their numbers (None if this process cannot read them).
    """

    samples: int
    batch: int
    folder: Path
    ranks: int
    largest: Callable[[Sequence[int]], list[int]]
    record: Callable[..., None]
    fetch: Callable[[Sequence[int]], Tensor] | None = None


@dataclass(frozen=True)
class _Room:
    """Room for the outputs of all samples: in memory, or in a mapped ``file``."""

    values: Tensor
    file: mmap.mmap | None = None

    @property
    def place(self) -> str:
        return "memory" if self.file is None else "disk"

    def write(self, rows: NDArray[np.int64], out: Tensor) -> None:
        self.values.index_copy_(0, torch.from_numpy(rows), images_first(out))

    def read(self, rows: NDArray[np.int64]) -> Tensor:
        return images_last(self.values.index_select(0, torch.from_numpy(rows)))

    def seconds(self, rows: NDArray[np.int64], out: Tensor) -> tuple[float, float]:
        """Write the outputs of a batch and read them; return the seconds of each.

        A file is still in memory when it is read, so the time to write it is returned for both.
        """
        self.write(rows, out)
        self.read(rows)  # the first calls may compile kernels
        began = time.perf_counter()
        self.write(rows, out)
        if self.file is not None:
            self.file.flush()  # to measure the disk
        writing = time.perf_counter() - began
        began = time.perf_counter()
        self.read(rows)
        return writing, time.perf_counter() - began if self.file is None else writing


class FrozenOutputs:
    """The kept outputs of one phase; `start` begins another.

    Args:
        limits: The limits of the run.
    """

    def __init__(self, limits: RunLimits) -> None:
        self._limits = limits
        self.start()

    def start(self) -> None:
        """Discard everything: another stack is trained."""
        self._room: _Room | None = None
        self._has = np.zeros(self._limits.samples, bool)
        self._is_refused = False
        self._versions: tuple[int, ...] = ()
        self._validation: list[Tensor] | None = None
        self._validation_versions: tuple[int, ...] = ()

    def of_batch(self, batch: Batch, frozen: Frozen, versions: Versions, steps_left: int) -> Tensor:
        """Return the output of the frozen stacks for a batch of ``steps_left`` steps, including this one.

        ``versions`` returns numbers that change if the weights of the frozen stacks are written.
        """
        if self._is_refused or batch.numbers is None:
            return frozen(batch.inputs)
        rows = np.asarray(batch.numbers)
        if self._room is None:
            return self._decide(batch.inputs, rows, frozen, versions, steps_left)
        if versions() != self._versions:
            self._refuse("the frozen stacks were changed")
            return frozen(batch.inputs)
        if self._has[rows].any() and not self._has[rows].all():
            self._add_rest(frozen)
        if self._has[rows].all():
            return self._room.read(rows)
        out = frozen(batch.inputs)
        self._write(rows, out)
        return out

    def of_validation(
        self, samples: Iterable[Tensor], frozen: Frozen, versions: Versions
    ) -> Iterable[Tensor]:
        """Return the outputs for the validation samples; keep small ones until the phase ends.

        Messages between ranks are part of a forward pass, so all ranks compute outputs, or none does; and
        every rank computes each output when the caller takes it.
        """
        kept = self._validation if versions() == self._validation_versions else None
        some_rank_computes = self._limits.largest([int(kept is None)])[0]
        return self._computed(samples, frozen, versions) if kept is None or some_rank_computes else kept

    def _computed(self, samples: Iterable[Tensor], frozen: Frozen, versions: Versions) -> Iterator[Tensor]:
        """Yield the outputs one by one; keep them after the last if they are small."""
        kept: list[Tensor] = []
        size, self._validation = 0, None
        for out in map(frozen, samples):
            size += out.nbytes
            if size <= VALIDATION_BYTES:
                kept.append(out)
            else:
                kept.clear()
            yield out
        if size <= VALIDATION_BYTES:
            self._validation, self._validation_versions = kept, versions()

    def _decide(
        self, inputs: Tensor, rows: NDArray[np.int64], frozen: Frozen, versions: Versions, steps_left: int
    ) -> Tensor:
        """Compute a batch, measure, and decide whether the rest of the phase keeps outputs."""
        first = self._limits.samples / self._limits.batch
        if steps_left <= first:
            return frozen(inputs)  # no sample comes twice
        frozen(inputs)  # the first call may compile kernels
        began = time.perf_counter()
        out = frozen(inputs)
        computing = time.perf_counter() - began
        limits = self._limits
        each = prod(out.shape[1:]) * out.element_size()
        size = each * limits.samples
        room = self._reserve(out, size)
        if isinstance(room, _Room):
            writing, reading = room.seconds(rows, out)
            if not is_faster(steps_left, first, computing, writing, reading):
                room = "computing them again is faster"
        refused, size = limits.largest([int(isinstance(room, str)), size])
        if isinstance(room, str) or refused:
            self._refuse(room if isinstance(room, str) else "another rank cannot keep its part")
            return out
        self._room, self._versions = room, versions()
        self._has[rows] = True
        limits.record("frozen_outputs", kept_in=room.place, bytes=size, samples=limits.samples)
        return out

    def _reserve(self, out: Tensor, size: int) -> _Room | str:
        """Return room for the outputs of all samples, or why there is none."""
        if not has_cpu_kernel(out):
            return "other backends compute other bits at other places of a batch"
        limits, is_full = self._limits, "neither memory nor disk has room"
        shape = (limits.samples, *out.shape[1:])
        if size * limits.ranks <= MEMORY_FRACTION * available_bytes():
            return _Room(out.new_empty(shape))
        if not hasattr(os, "posix_fallocate"):  # macOS: a file could run out of space while it is written
            return is_full
        try:
            space = os.statvfs(limits.folder)
            if size * limits.ranks > DISK_FRACTION * space.f_bavail * space.f_frsize:
                return is_full
            with tempfile.TemporaryFile(dir=limits.folder) as file:  # has no name: it ends with the process
                os.posix_fallocate(file.fileno(), 0, size)
                mapped = mmap.mmap(file.fileno(), size)
        except OSError:
            return is_full
        return _Room(torch.frombuffer(mapped, dtype=out.dtype).view(shape), mapped)

    def _refuse(self, reason: str) -> None:
        """Compute the outputs in each step until the phase ends."""
        self._is_refused, self._room = True, None
        self._limits.record("frozen_outputs", kept_in=None, reason=reason)

    def _write(self, rows: NDArray[np.int64], out: Tensor) -> None:
        assert self._room is not None, "only kept outputs are written"
        self._room.write(rows, out)
        self._has[rows] = True

    def _add_rest(self, frozen: Frozen) -> None:
        """Compute the samples that no batch of the first epoch had, if they fit one batch.

        The samples that an epoch leaves out would otherwise appear in most batches of the next.
        """
        rest = np.flatnonzero(~self._has)
        if self._limits.fetch is None or not 0 < len(rest) <= self._limits.batch:
            return
        inputs = self._limits.fetch(rest.tolist())
        rows = np.resize(np.arange(len(rest)), self._limits.batch)  # no kernel sees another batch size
        out = frozen(images_last(inputs[torch.from_numpy(rows)]))
        self._write(rest, out[: len(rest)])


def is_faster(steps: int, first: float, computing: float, writing: float, reading: float) -> bool:
    """Return True if keeping outputs is predicted to be faster.

    Args:
        steps: The steps left in the phase.
        first: The steps in which a sample comes for the first time.
        computing: Seconds to compute the outputs of a batch.
        writing: Seconds to write them.
        reading: Seconds to read them.

    >>> is_faster(30, 10, computing=3.0, writing=1.0, reading=1.0)
    True
    >>> is_faster(12, 10, computing=3.0, writing=1.0, reading=1.0)
    False
    """
    return (steps - first) * (computing - reading) > first * writing
