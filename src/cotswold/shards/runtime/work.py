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
from cotswold.paramserver.core.replica import StepTask
from cotswold.paramserver.core.update_sequence import Part
from cotswold.shards.core.permutation import samples_at
from cotswold.wire import Shard

LEFT_OUT = "left_out"
"""Name of the detail with the number of samples that do not count in means."""
UNJUDGED = "unjudged"
"""Name of the detail with the number of samples without a known right answer."""


@dataclass(frozen=True)
class PortionSum:
    """Sums over the patterns of a portion."""

    value: float
    """Sum of the losses."""
    samples: int
    """Number of patterns."""
    details: Mapping[str, float]
    """Further sums by name, such as the number of correct answers."""

    @property
    def weight(self) -> float:
        """Number of samples that count in means; smaller than ``samples`` if the loss leaves some out."""
        return self.samples - self.details.get(LEFT_OUT, 0.0)


@dataclass(frozen=True)
class Slot:
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
    def of_shape(cls, name: str, shape: Sequence[int]) -> Slot:
        """Return the slot of a tensor, whose first dimension counts its rows.

        Args:
            name: Name of the tensor.
            shape: Its shape; a scalar has one row.
        """
        rows = shape[0] if shape else 1
        return cls(name, rows, prod(shape) // max(rows, 1))


class OfParameters(Protocol):
    """A computation on patterns, with parameters in one vector."""

    @property
    def parameters(self) -> Tensor:
        """The parameters, flat ``(size,)``, contiguous, on the CPU; writing into the tensor sets them."""
        ...

    @property
    def layout(self) -> Sequence[Slot]:
        """The tensors in the vector, in order."""
        ...

    @property
    def patterns(self) -> int:
        """Number of patterns."""
        ...

    @property
    def flops(self) -> tuple[int, int]:
        """Floating-point operations per pattern, as the papers count them: for the value, and for value and
        gradient."""
        ...


class Work(OfParameters, Protocol):
    """A sum over patterns, as a function of the parameters."""

    def add(self, patterns: Sequence[int], gradient: Tensor | None) -> PortionSum:
        """Return the sums over patterns at the current parameters, and add their gradient.

        Args:
            patterns: Numbers of the patterns.
            gradient: Tensor ``(size,)`` to which the gradient of the sum is added; None for the value only.

        Raises:
            CotswoldError: The sum cannot be computed.
        """
        ...

    @property
    def held(self) -> int:
        """Number of patterns held out for validation."""
        ...

    def judge(self, start: int, stop: int) -> PortionSum:
        """Return the sums over held-out patterns at the current parameters.

        Args:
            start: First held-out pattern.
            stop: Past the last one.

        Returns:
            The sums. Details have the names of their means, such as ``accuracy``.
        """
        ...


class ReplicaWork(OfParameters, Protocol):
    """The mean loss of a batch, as a function of the parameters, which may be on a device and are always the
    same tensor."""

    def compute(self, samples: Sequence[int], gradient: Tensor) -> PortionSum:
        """Add the gradient of these samples' mean loss at the current parameters to ``gradient`` ``(size,)``,
        on the same device.

        Return the sums of losses and details, as `Work.add` does. Raise CotswoldError on failure.
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


def samples_of(work: OfParameters, seed: int, start: int, stop: int) -> Sequence[int]:
    """Return the numbers of the samples at positions ``start`` to ``stop`` of one epoch, in the work's
    numbering."""
    dealt = samples_at(seed, work.patterns, start, stop)
    if not (isinstance(work, VaryingWork) and work.varies):
        return dealt
    first = start // work.patterns * work.patterns
    return array("q", (first + each for each in dealt))


@dataclass(frozen=True)
class Meeting:
    """Facts about a replica for its other ranks, as plain values."""

    name: str
    """Name of the replica and of its first rank."""
    address: str
    """Address of the first rank."""
    reach: Mapping[str, object]
    """Fields of `EndpointSettings`."""
    own: str
    """Name of the `OwnSteps` that it takes."""
    push_samples: int
    """Maximum samples per push."""


class Steps(Protocol):
    """Accumulation of a replica's steps between two pushes."""

    def lay(self, shards: Sequence[Shard]) -> None:
        """Set the servers' shards; may be called by a thread other than the computing one."""
        ...

    def begin(self, task: StepTask) -> None:
        """Install pulled shards, at the latest with the next step."""
        ...

    def step(self, samples: Sequence[int], rate: float, opens: bool) -> PortionSum:
        """Take a step on these samples; with ``opens``, it starts a new accumulation."""
        ...

    def may_grow(self, samples: int) -> bool:
        """True if a step of this many more samples fits before the accumulation is closed."""
        ...

    def close(self) -> tuple[Mapping[str, Part], Mapping[tuple[str, str], int]]:
        """Return the part for each server, in memory that stays unchanged until the next close, and the bytes
        of its numbers by tensor and kind."""
        ...


@runtime_checkable
class RankedWork(OfParameters, Protocol):
    """A work of several ranks, each of which holds some of the parameters and pulls and pushes its shards
    itself.

    A replica calls the first rank, whose `parameters` are the whole initial ones. It is a `ReplicaWork`
    without `compute`.
    """

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        ...

    def meet(self, meeting: Meeting) -> Steps:
        """Open endpoints on the other ranks; return the steps that all ranks take together."""
        ...

    def rank_of(self, shards: Sequence[Shard]) -> Mapping[int, int]:
        """Return the rank that pulls and pushes each shard, by number."""
        ...


class JudgeWork(Protocol):
    """The computation of an evaluator."""

    def means(self, parameters: Tensor) -> Mapping[str, float]:
        """Return means over all validation samples at parameters ``(size,)``: ``loss`` and others. Raise
        CotswoldError on failure."""
        ...


@runtime_checkable
class SteppingWork(ReplicaWork, Protocol):
    """A work that applies its own steps to the parameters, such as one of several processes."""

    def learn(self, samples: Sequence[int], gradient: Tensor, rate: float) -> PortionSum:
        """Compute as `compute` does, and take plain steps of this rate along the added gradients."""
        ...


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


class Factors(Protocol):
    """The gradient of a tensor as a product of a layer's errors and activations (Chilimbi et al. 2014,
    section 3.3)."""

    @property
    def examples(self) -> int:
        """k: number of outer products in the sum."""
        ...

    def errors_of(self, first: int, stop: int) -> Tensor:
        """Return the errors of some rows of the tensor; contiguous, one example after the other."""
        ...

    def activations_of(self, first: int, stop: int) -> Tensor:
        """Return the activations that these rows share; contiguous, one example after the other."""
        ...


@runtime_checkable
class FactoringWork(ReplicaWork, Protocol):
    """A work that returns some tensors' gradients as factors, to be multiplied by the servers of the
    tensors."""

    @property
    def decay(self) -> float:
        """Weight decay per step, added to a gradient when its factors are multiplied."""
        ...

    @property
    def gives_factors(self) -> bool:
        """True if it returns any factors, as far as batches have shown."""
        ...

    def lay(self, shards: Sequence[Shard], samples: int) -> None:
        """Set the ranges of rows and the samples per push; called before the first `compute` and on every
        change."""
        ...

    def take_factors(self) -> Mapping[str, Factors]:
        """Return the factors since the last call, by tensor; `compute` has added nothing to these tensors'
        gradients."""
        ...


def portions_of(held: int, portion: int) -> list[tuple[int, int]]:
    """Return (start, stop) of the portions for the evaluation of held-out patterns, equal in all
    processes."""
    return [(start, min(start + portion, held)) for start in range(0, held, portion)]


def means_of(sums: Sequence[PortionSum]) -> Mapping[str, float] | None:
    """Return means over held-out patterns: ``loss`` and each detail; None without patterns that count."""
    weight = sum(each.weight for each in sums)
    if not weight:
        return None
    names = dict.fromkeys(name for each in sums for name in each.details if name not in (LEFT_OUT, UNJUDGED))
    details = {name: sum(each.details.get(name, 0.0) for each in sums) for name in names}
    totals = {"loss": sum(each.value for each in sums), **details}
    return {name: total / weight for name, total in totals.items()}
