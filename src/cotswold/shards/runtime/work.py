"""What a worker can compute, made in the worker by the function that `"module:function"` names.

Knows: the verbs. Does not know: networks, data, who asks.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from cotswold.batch.core.permutation import samples_at
from cotswold.host import Process
from cotswold.paramserver.core.replica import StepTask
from cotswold.paramserver.core.update_sequence import Part
from cotswold.wire import Shard

LEFT_OUT = "left_out"
"""The detail that says how many samples do not count in means."""
UNJUDGED = "unjudged"
"""Detail of a sum: samples of which nobody knows whether their answers are right."""


@dataclass(frozen=True)
class PortionSum:
    """What the patterns of a portion add up to."""

    value: float
    """The sum of their losses."""
    samples: int
    details: Mapping[str, float]
    """Further sums, such as how many were right."""

    @property
    def weight(self) -> float:
        """Samples that count in means: fewer than there are if the loss leaves some out."""
        return self.samples - self.details.get(LEFT_OUT, 0.0)


@dataclass(frozen=True)
class Slot:
    """A tensor in the vector of parameters: rows of numbers that belong together."""

    name: str
    rows: int
    """Rows of a matrix, or blocks of filters: a shard has whole ones."""
    columns: int
    """Numbers of a row."""
    product: tuple[int, ...] = ()
    """Of the filters of a locally connected layer: its geometry, as `ops.local.encode` has it."""

    @classmethod
    def of_shape(cls, name: str, shape: Sequence[int]) -> Slot:
        """The slot of a tensor, whose first dimension counts its rows."""
        rows = shape[0] if shape else 1
        return cls(name, rows, prod(shape) // max(rows, 1))


class OfParameters(Protocol):
    """What is computed from patterns at parameters that lie in one vector."""

    @property
    def parameters(self) -> Tensor:
        """The parameters, flat ``(size,)``, contiguous, on the CPU; whoever writes into it sets them."""
        ...

    @property
    def layout(self) -> Sequence[Slot]:
        """The tensors that lie in the vector, one after the other."""
        ...

    @property
    def patterns(self) -> int:
        """How many patterns there are."""
        ...

    @property
    def flops(self) -> tuple[int, int]:
        """FLOPs of one pattern, as the papers count: of the value, and of the gradient (with the value)."""
        ...


class Work(OfParameters, Protocol):
    """A sum over patterns, as a function of the parameters."""

    def add(self, patterns: Sequence[int], gradient: Tensor | None) -> PortionSum:
        """Sum over these patterns at the present parameters; adds their gradient to ``gradient`` ``(size,)``.

        Raises CotswoldError where it cannot.
        """
        ...

    @property
    def held(self) -> int:
        """How many patterns are held out for validation."""
        ...

    def judge(self, start: int, stop: int) -> PortionSum:
        """Sum over the held-out patterns from ``start`` to ``stop`` at the present parameters; details are
        called as their means are to be, such as ``accuracy``."""
        ...


class ReplicaWork(OfParameters, Protocol):
    """The mean loss of a batch, as a function of the parameters, which may be on a device, and are always the
    same vector."""

    def compute(self, samples: Sequence[int], gradient: Tensor) -> PortionSum:
        """Add the gradient of these samples' mean loss at the present parameters to ``gradient`` ``(size,)``,
        which is where they are.

        Returns the sums of losses and details, as `Work.add` does. Raises CotswoldError where it cannot.
        """
        ...


@runtime_checkable
class VaryingWork(Protocol):
    """A work whose samples may be others in each epoch."""

    @property
    def varies(self) -> bool:
        """Whether they are: then number e · n + i is sample i of n as epoch e sees it."""
        ...


@runtime_checkable
class FedWork(Protocol):
    """A work whose samples may come from elsewhere, and are then asked for ahead."""

    @property
    def is_fed(self) -> bool:
        """Whether they do."""
        ...

    def expect(self, batches: Sequence[Sequence[int]]) -> None:
        """These are the batches of samples that are computed next, in this order, as far as that is known;
        said by the thread that computes."""
        ...

    @property
    def is_starved(self) -> bool:
        """Whether it waits for samples now; may be asked by another thread."""
        ...


def samples_of(work: OfParameters, seed: int, start: int, stop: int) -> Sequence[int]:
    """The numbers of the samples at places ``start`` to ``stop`` of one epoch, as the work wants them."""
    dealt = samples_at(seed, work.patterns, start, stop)
    if not (isinstance(work, VaryingWork) and work.varies):
        return dealt
    first = start // work.patterns * work.patterns
    return array("q", (first + each for each in dealt))


@dataclass(frozen=True)
class Meeting:
    """What the other ranks of a replica need to know of it; plain values."""

    name: str
    """Of the replica, and of its first rank."""
    address: str
    """Where the first rank is reached."""
    reach: Mapping[str, object]
    """The fields of `Reach`."""
    own: str
    """Which `OwnSteps` it takes."""
    push_samples: int
    """How many samples make a push, at most."""


class Steps(Protocol):
    """What a replica's steps add up to between two pushes."""

    def lay(self, shards: Sequence[Shard]) -> None:
        """The servers have these; may be said by another thread than that which takes steps."""
        ...

    def begin(self, task: StepTask) -> None:
        """Put what was pulled in its place, at the latest when the step is taken."""
        ...

    def step(self, samples: Sequence[int], rate: float, opens: bool) -> PortionSum:
        """A step on these samples; where it ``opens``, nothing before it belongs to the next push."""
        ...

    def may_grow(self, samples: int) -> bool:
        """Whether a step of so many more samples may be added before it is closed."""
        ...

    def close(self) -> tuple[Mapping[str, Part], Mapping[tuple[str, str], int]]:
        """What goes to each server, in memory that stays so until the next is closed; and the bytes of its
        numbers, by tensor and kind."""
        ...


@runtime_checkable
class RankedWork(OfParameters, Protocol):
    """The work of several ranks, each of which has some of the parameters, and pulls and pushes shards by
    itself: what a replica asks the first of them, whose `parameters` are those with which it was made, whole.
    It is a `ReplicaWork` but for `compute`."""

    @property
    def ranks(self) -> int:
        """How many there are."""
        ...

    def meet(self, meeting: Meeting) -> Steps:
        """Have the other ranks open endpoints of their own; the steps that all take together."""
        ...

    def rank_of(self, shards: Sequence[Shard]) -> Mapping[int, int]:
        """The rank that pulls and pushes each shard, by number."""
        ...


class JudgeWork(Protocol):
    """What an evaluator computes."""

    def means(self, parameters: Tensor) -> Mapping[str, float]:
        """Over all validation samples, at parameters ``(size,)``: ``loss``, and more. Raises CotswoldError
        where it cannot."""
        ...


@runtime_checkable
class SteppingWork(ReplicaWork, Protocol):
    """A work that takes steps of its own on the parameters, such as that of several processes."""

    def learn(self, samples: Sequence[int], gradient: Tensor, rate: float) -> PortionSum:
        """As `compute`, and plain steps of this rate along what is added to ``gradient``."""
        ...


@runtime_checkable
class DeviceWork(Protocol):
    """What computes where it is told to."""

    def move_to(self, device: torch.device) -> None:
        """Compute there from now on, and have the parameters there; before anybody asks for these."""
        ...


@runtime_checkable
class SharedWork(Protocol):
    """A work that several processes compute together, which the process leads that has it."""

    @property
    def processes(self) -> Sequence[Process]:
        """The others."""
        ...

    @property
    def owing(self) -> Sequence[Process]:
        """Those that have not answered; may be asked by another thread meanwhile."""
        ...

    @property
    def is_awaiting(self) -> bool:
        """Whether the process that leads only waits for them now, and computes no part itself."""
        ...


class Factors(Protocol):
    """The gradient of a tensor as a product of a layer's errors and activations (Chilimbi et al. 2014,
    section 3.3)."""

    @property
    def examples(self) -> int:
        """k: how many outer products are summed."""
        ...

    def errors_of(self, first: int, stop: int) -> Tensor:
        """What some rows of the tensor need for themselves; contiguous, an example after the other."""
        ...

    def activations_of(self, first: int, stop: int) -> Tensor:
        """What these rows together need besides; contiguous, an example after the other."""
        ...


@runtime_checkable
class FactoringWork(ReplicaWork, Protocol):
    """A work that gives some tensors' gradients as factors, which whoever holds the tensors multiplies."""

    @property
    def decay(self) -> float:
        """So much of the weights a step is added to gradients by whoever multiplies their factors."""
        ...

    @property
    def gives_factors(self) -> bool:
        """Whether it gives any, as far as a batch has shown."""
        ...

    def lay(self, shards: Sequence[Shard], samples: int) -> None:
        """Hear where rows lie, and how many samples make a push; before the first `compute`, and whenever
        that changes."""
        ...

    def take_factors(self) -> Mapping[str, Factors]:
        """Those since they were taken last, by tensor; to its gradient `compute` has added nothing."""
        ...


def portions_of(held: int, portion: int) -> list[tuple[int, int]]:
    """Start and stop of the portions by which held-out patterns are judged, wherever that is done."""
    return [(start, min(start + portion, held)) for start in range(0, held, portion)]


def means_of(sums: Sequence[PortionSum]) -> Mapping[str, float] | None:
    """Means over held-out patterns: ``loss``, and each detail; None without patterns that count."""
    weight = sum(each.weight for each in sums)
    if not weight:
        return None
    names = dict.fromkeys(name for each in sums for name in each.details if name not in (LEFT_OUT, UNJUDGED))
    details = {name: sum(each.details.get(name, 0.0) for each in sums) for name in names}
    totals = {"loss": sum(each.value for each in sums), **details}
    return {name: total / weight for name, total in totals.items()}
