"""Interfaces of the work that a worker computes; a function named ``"module:function"`` builds it in the
worker.

Knows: the methods. Does not know: networks, data, callers.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from cotswold.host import Process
from cotswold.shards.core.permutation import samples_at

LEFT_OUT = "left_out"
"""Name of the detail with the number of samples that do not count in means."""
UNJUDGED = "unjudged"
"""Name of the detail with the number of samples without a known right answer."""


@dataclass(frozen=True)
class PortionSum:
    """Sums over the samples of a portion."""

    value: float
    """Sum of the losses."""
    samples: int
    """Number of samples."""
    details: Mapping[str, float]
    """Further sums by name, such as the number of correct answers."""

    @property
    def weight(self) -> float:
        """Number of samples that count in means; smaller than ``samples`` if the loss leaves some out."""
        return self.samples - self.details.get(LEFT_OUT, 0.0)


def add_sums(sums: Sequence[PortionSum]) -> PortionSum:
    """Return the sum of several portions' sums."""
    names = dict.fromkeys(name for each in sums for name in each.details)
    details = {name: sum(each.details.get(name, 0.0) for each in sums) for name in names}
    return PortionSum(sum(each.value for each in sums), sum(each.samples for each in sums), details)


@dataclass(frozen=True)
class TensorSlot:
    """A tensor in the vector of parameters, as rows of numbers."""

    name: str
    """Name of the tensor."""
    rows: int
    """Rows of a matrix, or blocks of filters; shards contain whole rows."""
    columns: int
    """Numbers per row."""
    product: tuple[int, ...] = ()
    """For filters of a locally connected layer: its geometry, encoded by `ops.local.encode`."""

    @classmethod
    def of_shape(cls, name: str, shape: Sequence[int]) -> TensorSlot:
        """Return the slot of a tensor, whose first dimension counts its rows.

        Args:
            name: Name of the tensor.
            shape: Its shape; a scalar has one row.
        """
        rows = shape[0] if shape else 1
        return cls(name, rows, prod(shape) // max(rows, 1))


class ParameterWork(Protocol):
    """A computation on samples, with parameters in one vector."""

    @property
    def parameters(self) -> Tensor:
        """The parameters, flat ``(size,)``, contiguous, on the CPU; writing into the tensor sets them."""
        ...

    @property
    def layout(self) -> Sequence[TensorSlot]:
        """The tensors in the vector, in order."""
        ...

    @property
    def samples(self) -> int:
        """Number of samples."""
        ...

    @property
    def flops(self) -> tuple[int, int]:
        """Floating-point operations per sample, as the papers count them: for the value, and for value and
        gradient."""
        ...


class Work(ParameterWork, Protocol):
    """A sum over samples, as a function of the parameters."""

    def add(self, samples: Sequence[int], gradient: Tensor | None) -> PortionSum:
        """Return the sums over samples at the current parameters, and add their gradient.

        Args:
            samples: Numbers of the samples.
            gradient: Tensor ``(size,)`` to which the gradient of the sum is added; None for the value only.

        Raises:
            CotswoldError: The sum cannot be computed.
        """
        ...

    @property
    def held_out(self) -> int:
        """Number of samples held out for validation."""
        ...

    def validate(self, start: int, stop: int) -> PortionSum:
        """Return the sums over held-out samples at the current parameters.

        Args:
            start: First held-out sample.
            stop: Past the last one.

        Returns:
            The sums. Details have the names of their means, such as ``accuracy``.
        """
        ...


@runtime_checkable
class VaryingWork(Protocol):
    """A work whose samples may differ in each epoch."""

    @property
    def varies(self) -> bool:
        """True if they differ: then number e · n + i is sample i of n in epoch e."""
        ...


@runtime_checkable
class FedWork(Protocol):
    """A work whose samples may come from data servers, with prefetch."""

    @property
    def is_fed(self) -> bool:
        """True if they come from data servers."""
        ...

    def expect(self, batches: Sequence[Sequence[int]]) -> None:
        """Announce the next batches, in order, as far as known; called by the computing thread."""
        ...

    @property
    def is_starved(self) -> bool:
        """True while it waits for samples; another thread may ask."""
        ...


def samples_of(work: ParameterWork, seed: int, start: int, stop: int) -> Sequence[int]:
    """Return the numbers of the samples at positions ``start`` to ``stop`` of one epoch, in the work's
    numbering."""
    dealt = samples_at(seed, work.samples, start, stop)
    if not (isinstance(work, VaryingWork) and work.varies):
        return dealt
    first = start // work.samples * work.samples
    return array("q", (first + each for each in dealt))


@runtime_checkable
class DeviceWork(Protocol):
    """A work that can compute on a device."""

    def move_to(self, device: torch.device) -> None:
        """Move the computation and the parameters to a device; called before the parameters are used."""
        ...


@runtime_checkable
class SharedWork(Protocol):
    """A work that several processes compute together, led by the process that has it."""

    @property
    def processes(self) -> Sequence[Process]:
        """The other processes."""
        ...

    @property
    def owing(self) -> Sequence[Process]:
        """Processes that have not answered; another thread may ask."""
        ...

    @property
    def is_awaiting(self) -> bool:
        """True while the leading process only waits for the others."""
        ...


def held_out_portions(held: int, portion: int) -> list[tuple[int, int]]:
    """Return (start, stop) of the portions for the evaluation of held-out samples, equal in all
    processes."""
    return [(start, min(start + portion, held)) for start in range(0, held, portion)]


def validation_means(sums: Sequence[PortionSum]) -> Mapping[str, float] | None:
    """Return means over held-out samples: ``loss`` and each detail; None without samples that count."""
    weight = sum(each.weight for each in sums)
    if not weight:
        return None
    names = dict.fromkeys(name for each in sums for name in each.details if name not in (LEFT_OUT, UNJUDGED))
    details = {name: sum(each.details.get(name, 0.0) for each in sums) for name in names}
    totals = {"loss": sum(each.value for each in sums), **details}
    return {name: total / weight for name, total in totals.items()}
