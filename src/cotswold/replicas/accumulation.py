"""Accumulation of a replica's steps between two pushes: gradients, local steps or factors, split by server.

Knows: the parameters, the location of their rows, a work. Does not know: when to push, messages, rates, the
device of the parameters (`vectors`).

    local steps   a step                        a push is
    none          adds up g                     the sum, and factors of tensors whose work gives some
    sgd           the same, and w ← w - η·g     the same
    pushed        w ← w - η·g                   the change of w by these steps

While the previous push is unanswered, a push grows, to `GROWS` times the usual steps. If servers use plain
steps, it grows to `GROWS_MOVING` times. Beyond the usual length, w then moves by - R·η times the sum so far,
for R replicas, as if the other replicas did the same. Reason: the sum of many gradients at one w is too long
a step, and so are R sums that each went the whole way. With R = 1 this is SGD; with more it is as stable as
R replicas that push in turn. Factors do not grow longer, because their number increases. Neither do pushed
steps, nor gradients whose squares Adagrad would keep forever.

A pull replaces w. If local steps are pushed, those that the pull does not contain yet are added to it.
Otherwise a replica would compute from weights without its newest steps. A gradient that is not finite
changes nothing here: the push contains it, and servers refuse the push.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from cotswold.optim.schedule import SampleSchedule, Schedule
from cotswold.paramserver.core.replica_session import StepTask
from cotswold.paramserver.core.update_sequence import ServerUpdate
from cotswold.replicas.vectors import VectorMemory
from cotswold.replicas.work import FactoringWork, GradientFactors, ReplicaWork, SteppingWork
from cotswold.shards.runtime.arithmetic import Array, raw
from cotswold.shards.runtime.parameters import Layout
from cotswold.shards.runtime.work import PortionSum
from cotswold.wire import Shard

OwnSteps = Literal["none", "sgd", "pushed"]
GROWS, GROWS_MOVING = 4, 32
"""Longest push while the previous one is unanswered, as a multiple of the usual steps."""
PushedBytes = Mapping[tuple[str, str], int]
"""Bytes of the numbers that go to servers, by tensor and kind."""


@dataclass(frozen=True)
class StepSettings:
    """Local use of gradients, in addition to pushing them."""

    own: OwnSteps = "none"
    schedule: Schedule = "constant"
    warmup: float = 0.0
    epochs: int = 1
    """Epochs that the schedule covers."""
    beyond: int = 0
    """In a long push, a step moves the parameters by this multiple of its rate; 0 for no long pushes."""

    def by_samples(self, samples: int, batch: int) -> SampleSchedule:
        """The rate of a step as a function of its first sample; ``samples`` per epoch."""
        return SampleSchedule(self.schedule, self.warmup, samples, batch, self.epochs)


class Accumulation:
    """The steps of one work since the last push."""

    def __init__(
        self,
        work: ReplicaWork,
        layout: Layout,
        own: OwnSteps,
        push_samples: int,
        vectors: VectorMemory,
        beyond: int = 0,
    ) -> None:
        """``push_samples`` is the usual number of samples of a push, ``vectors`` accesses the parameters,
        ``beyond`` is as in `StepSettings`."""
        self._work, self._own, self._push_samples, self._beyond = work, own, push_samples, beyond
        self._vectors, self._parameters = vectors, work.parameters.detach()
        self._sum, self._other_sum = torch.zeros_like(self._parameters), torch.zeros_like(self._parameters)
        self._gradient = torch.zeros_like(self._parameters) if own != "none" or beyond else None
        self._unpulled_change = torch.zeros_like(self._parameters) if own == "pushed" else None
        """Change of w by closed accumulations that are not in the newest pull."""
        self._pull: tuple[int, int] | None = None
        self._steps = self._samples = 0
        """Steps and samples since the last push."""
        self._shards: tuple[Shard, ...] = ()
        self._work_shards: tuple[Shard, ...] = ()
        """The shards that the work knows."""
        self._rows = _Rows(layout)

    def lay(self, shards: Sequence[Shard]) -> None:
        """Set the shards of the servers; any thread may call it."""
        self._shards = tuple(shards)

    def begin(self, task: StepTask) -> None:
        """Write pulled shards into the parameters; afterwards nothing refers to their buffers."""
        self._install(task, newest_of(task))
        task.installs.clear()

    def _install(self, task: StepTask, newest: Mapping[int, object]) -> None:
        """Write these shards, by number, into the parameters, and update the local steps."""
        if self._unpulled_change is not None and task.pull != self._pull:
            self._pull = task.pull
            assert task.missing_accumulations in (0, 1), "at most one step was taken since the request"
            if task.missing_accumulations and self._vectors.is_finite(self._other_sum):
                self._unpulled_change.copy_(self._other_sum)
            else:
                self._unpulled_change.zero_()
        own = (
            []
            if self._unpulled_change is None
            else [self._unpulled_change]
            if task.opens
            else [self._unpulled_change, self._sum]
        )
        moves = [each for each in own if self._vectors.is_finite(each)] if newest else []
        for place in self._written(newest):
            for each in moves:
                self._parameters[place] += each[place]

    def step(self, samples: Sequence[int], rate: float, opens: bool) -> PortionSum:
        """Take a step on these samples. If it ``opens`` a push, earlier steps do not belong to that push."""
        total = self._sum
        if opens:
            self._steps = self._samples = 0
            total.zero_()
            if self._factoring is not None:
                self._open(self._factoring)
        was_long, self._steps, self._samples = self._is_long, self._steps + 1, self._samples + len(samples)
        if self._gradient is None or (self._own == "none" and not self._is_long):
            return self._work.compute(samples, total)
        gradient, own_rate = self._gradient.zero_(), rate * self._beyond if self._is_long else rate
        if self._is_long and not was_long and self._vectors.is_finite(total):
            gone = 0.0 if self._own == "none" else rate
            self._parameters.sub_(total, alpha=own_rate - gone)
        if isinstance(self._work, SteppingWork):
            found = self._work.learn(samples, gradient, own_rate)
        else:
            found = self._work.compute(samples, gradient)
            if self._vectors.is_finite(gradient):
                self._parameters.sub_(gradient, alpha=own_rate)
        total.add_(gradient, alpha=-rate if self._own == "pushed" else 1.0)
        return found

    def may_grow(self, samples: int) -> bool:
        """True if a step of this many more samples may be added before the push is closed."""
        return self._may_be_long or self._samples + samples <= self._push_samples

    @property
    def _may_be_long(self) -> bool:
        return self._beyond > 0 and (self._factoring is None or not self._factoring.gives_factors)

    @property
    def _is_long(self) -> bool:
        return self._may_be_long and self._samples > self._push_samples

    def close(self) -> tuple[Mapping[str, ServerUpdate], PushedBytes]:
        """The update for each server, in memory that stays valid until the next call."""
        closed, self._sum, self._other_sum = self._sum, self._other_sum, self._sum
        if self._unpulled_change is not None and self._vectors.is_finite(closed):
            self._unpulled_change += closed
        whole = self._vectors.read(closed)
        factors = {} if self._factoring is None else self._factoring.take_factors()
        servers: dict[str, list[Shard]] = {}
        for shard in self._shards:
            servers.setdefault(shard.server, []).append(shard)
        pushed: dict[tuple[str, str], int] = {}
        parts = {}
        for server, shards in servers.items():
            parts[server] = self._server_update(shards, whole, factors, pushed)
        return parts, pushed

    def _written(self, newest: Mapping[int, object]) -> Iterator[slice]:
        """Write shards into the parameters; yield the slice of each."""
        numbers = {shard.number: shard for shard in self._shards}
        for number, buffer in newest.items():
            assert isinstance(buffer, bytes | bytearray | memoryview)
            place = slice(numbers[number].start, numbers[number].stop)
            self._vectors.write(self._parameters[place], buffer)
            yield place

    def _numbers(self, whole: Array, shard: Shard) -> object:
        """A shard's slice of a closed accumulation."""
        return raw(whole[shard.start : shard.stop])

    @property
    def _factoring(self) -> FactoringWork | None:
        """The work, if its factors can be used; with local steps whole gradients are needed."""
        return self._work if self._own == "none" and isinstance(self._work, FactoringWork) else None

    def _open(self, work: FactoringWork) -> None:
        work.take_factors()
        if self._work_shards != self._shards:
            self._work_shards = self._shards
            work.lay(self._work_shards, self._push_samples)

    def _server_update(
        self,
        shards: Sequence[Shard],
        whole: Array,
        factors: Mapping[str, GradientFactors],
        pushed: dict[tuple[str, str], int],
    ) -> ServerUpdate:
        plain = "delta" if self._own == "pushed" else "gradient"
        spans: dict[str, tuple[int, int]] = {}
        buffers: list[object] = []
        examples = []
        for shard in shards:
            rows, known = self._rows.of(shard), factors.get(shard.tensor)
            if known is None:
                buffers.append(self._numbers(whole, shard))
                _count(pushed, shard.tensor, plain, (shard.stop - shard.start) * whole.itemsize)
            else:
                first, stop = spans.get(shard.tensor, rows)
                spans[shard.tensor] = min(first, rows[0]), max(stop, rows[1])
                buffers.append(errors := _bytes(known.errors_of(*rows)))
                _count(pushed, shard.tensor, "factors", errors.nbytes)
            examples.append(0 if known is None else known.examples)
        for tensor, rows in spans.items():
            buffers.append(activations := _bytes(factors[tensor].activations_of(*rows)))
            _count(pushed, tensor, "factors", activations.nbytes)
        return ServerUpdate(
            "factors" if spans else plain,
            tuple(shard.number for shard in shards),
            tuple(examples) if spans else (),
            tuple(buffers),
            decay=self._factoring.decay * self._steps if spans and self._factoring is not None else 0.0,
        )


class _Rows:
    """Rows of tensors in shards."""

    def __init__(self, layout: Layout) -> None:
        self._tensors: dict[str, tuple[int, int]] = {}
        """Start of each tensor, and numbers per row."""
        start = 0
        for name, rows, columns in layout:
            self._tensors[name] = start, columns
            start += rows * columns

    def of(self, shard: Shard) -> tuple[int, int]:
        """First row, and the row after the last."""
        start, columns = self._tensors[shard.tensor]
        return (shard.start - start) // columns, (shard.stop - start) // columns


def _bytes(values: Tensor) -> memoryview:
    return raw(values.contiguous().view(-1).cpu().numpy())


def newest_of(task: StepTask) -> dict[int, object]:
    """The newest pulled buffer of each shard, by number."""
    return {
        number: buffer
        for pulled in task.installs
        for number, buffer in zip(pulled.shards, pulled.buffers, strict=True)
    }


def _count(pushed: dict[tuple[str, str], int], tensor: str, kind: str, count: int) -> None:
    pushed[tensor, kind] = pushed.get((tensor, kind), 0) + count
