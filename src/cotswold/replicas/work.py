"""Interfaces of the work that a replica, one of its ranks, or an evaluator computes.

Knows: the methods. Does not know: networks, data, callers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from cotswold.paramserver.core.replica_session import StepTask
from cotswold.paramserver.core.update_sequence import ServerUpdate
from cotswold.shards.runtime.work import ParameterWork, PortionSum
from cotswold.wire import Shard


class ReplicaWork(ParameterWork, Protocol):
    """The mean loss of a batch, as a function of the parameters, which may be on a device and are always the
    same tensor."""

    def compute(self, samples: Sequence[int], gradient: Tensor) -> PortionSum:
        """Add the gradient of these samples' mean loss at the current parameters to ``gradient`` ``(size,)``,
        on the same device.

        Return the sums of losses and details, as `Work.add` does. Raise CotswoldError on failure.
        """
        ...


@dataclass(frozen=True)
class ReplicaEndpoint:
    """Facts about a replica for its other ranks, as plain values."""

    name: str
    """Name of the replica and of its first rank."""
    address: str
    """Address of the first rank."""
    endpoint_settings: Mapping[str, object]
    """Fields of `EndpointSettings`."""
    local_steps: str
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

    def close(self) -> tuple[Mapping[str, ServerUpdate], Mapping[tuple[str, str], int]]:
        """Return the part for each server, in memory that stays unchanged until the next close, and the bytes
        of its numbers by tensor and kind."""
        ...


@runtime_checkable
class RankedWork(ParameterWork, Protocol):
    """A work of several ranks, each of which holds some of the parameters and pulls and pushes its shards
    itself.

    A replica calls the first rank, whose `parameters` are the whole initial ones. It is a `ReplicaWork`
    without `compute`.
    """

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        ...

    def connect_ranks(self, leader: ReplicaEndpoint) -> Steps:
        """Open endpoints on the other ranks; return the steps that all ranks take together."""
        ...

    def rank_of(self, shards: Sequence[Shard]) -> Mapping[int, int]:
        """Return the rank that pulls and pushes each shard, by number."""
        ...


class EvaluationWork(Protocol):
    """The computation of an evaluator."""

    def means(self, parameters: Tensor) -> Mapping[str, float]:
        """Return means over all validation samples at parameters ``(size,)``: ``loss`` and others. Raise
        CotswoldError on failure."""
        ...


@runtime_checkable
class SteppingWork(ReplicaWork, Protocol):
    """A work that applies its own steps to the parameters, such as one of several processes."""

    def learn(self, samples: Sequence[int], gradient: Tensor, rate: float) -> PortionSum:
        """Compute as `compute` does, and take SGD steps of this rate along the added gradients."""
        ...


class GradientFactors(Protocol):
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

    def take_factors(self) -> Mapping[str, GradientFactors]:
        """Return the factors since the last call, by tensor; `compute` has added nothing to these tensors'
        gradients."""
        ...
