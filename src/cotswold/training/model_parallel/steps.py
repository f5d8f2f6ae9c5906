"""The steps of a model-parallel replica: all ranks take them together, each on its parts.

Knows: a rank's sums, the first rank's messages about a step. Does not know: servers, when a push is due, the
location of samples.

Each rank has its parts of the parameters consecutively in a vector, and accumulates over it as a
single-process replica does over the whole. Pulls go to the ranks that have the shards (`shards`), and closed
accumulations leave from there. Values of a shard on several ranks pass between them (`shard_exchange`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from cotswold.errors import MachineError, describe_exception
from cotswold.launch.watch.failure import is_peer_lost
from cotswold.paramserver.core.rank_fanout import RemoteBuffers
from cotswold.paramserver.core.replica_session import StepTask
from cotswold.paramserver.core.update_sequence import ServerUpdate
from cotswold.replicas.accumulation import Accumulation, OwnSteps, PushedBytes
from cotswold.replicas.vectors import HostVectors
from cotswold.shards.runtime.arithmetic import Array
from cotswold.shards.runtime.work import PortionSum, TensorSlot
from cotswold.training.model_parallel.full_batch_worker import Rank
from cotswold.training.model_parallel.shard_exchange import ShardExchange
from cotswold.training.model_parallel.shards import ShardParts, parts_of_shards
from cotswold.wire import PulledNewer, Shard


class RankWork:
    """The mean loss of a batch as a function of one rank's parts (`ReplicaWork`).

    All ranks call its methods in the same order.
    """

    def __init__(self, rank: Rank, decay: float) -> None:
        """``decay`` times a weight is added to its gradient."""
        self.rank, self._decay = rank, decay
        with torch.no_grad():
            self.parameters = torch.cat([each.detach().reshape(-1) for each in rank.parts])
        self.layout: Sequence[TensorSlot] = rank.objective.layout
        """The layout of the whole vector."""

    @property
    def samples(self) -> int:
        """The number of samples."""
        return self.rank.objective.samples

    @property
    def flops(self) -> tuple[int, int]:
        """FLOPs per sample of all ranks together."""
        return self.rank.objective.flops

    def compute(self, samples: Sequence[int], gradient: Tensor) -> PortionSum:
        """Add this rank's parts of the gradient of these samples' mean loss; the sums cover all ranks.

        Raises the error of this rank's task, or MachineError if only other ranks failed.
        """
        with torch.no_grad():
            for part, values in zip(self.rank.parts, self._cut(self.parameters), strict=True):
                part.copy_(values.view(part.shape))
        found = self._together(samples)
        mean = torch.zeros_like(gradient)
        for part, values in zip(self.rank.gradients(), self._cut(mean), strict=True):
            values += part.reshape(-1)
        gradient.add_(mean, alpha=1 / len(samples))
        if self._decay:
            gradient.add_(self.parameters, alpha=self._decay)
        return found

    def _together(self, samples: Sequence[int]) -> PortionSum:
        found: PortionSum | Exception
        try:
            found = self.rank.add(samples, learn=True)
        except Exception as error:
            if is_peer_lost(error):
                raise
            found = error
        able = torch.tensor([int(isinstance(found, PortionSum))], dtype=torch.int64)
        all_able = [torch.zeros_like(able) for _ in range(self.rank.size)]
        dist.all_gather(all_able, able, group=self.rank.wire)
        if isinstance(found, Exception):
            if self.rank.number:  # the first rank raises it to its caller
                print(f"rank {self.rank.number}: {describe_exception(found)}", flush=True)
            raise found
        failed = [rank for rank, each in enumerate(all_able) if not each.item()]
        if failed:
            raise MachineError(f"rank {failed[0]} of the replica failed to compute; see its output")
        return found

    def _cut(self, vector: Tensor) -> Iterator[Tensor]:
        return iter(torch.split(vector, [part.numel() for part in self.rank.parts]))


class RankAccumulation(Accumulation, HostVectors):
    """The steps of one rank since the last push."""

    def __init__(self, work: RankWork, local_steps: OwnSteps, push_samples: int) -> None:
        layout = tuple((slot.name, slot.rows, slot.columns) for slot in work.layout)
        super().__init__(work, layout, local_steps, push_samples, self)
        self._rank = work.rank
        self.closings = 0
        """The number of closed accumulations."""
        self.closed: Mapping[int, memoryview] = {}
        """This rank's push from the last accumulation, by shard."""
        self._exchange: ShardExchange | None = None
        self.parts: Mapping[int, ShardParts] = {}
        """The ranks' parts of each shard."""

    def settle(self, shards: Sequence[Shard]) -> None:
        """Use these shards for the following steps."""
        self.lay(shards)
        self.parts = parts_of_shards(self._rank.shapes, self._rank.every_box, shards)
        self._exchange = ShardExchange(self.parts, self._rank.number, self._rank.wire)

    def close(self) -> tuple[Mapping[str, ServerUpdate], PushedBytes]:
        """Return the push to each server; shards that other ranks push are `RemoteBuffers`."""
        assert self._exchange is not None, "settle() comes before a step"
        self.closings += 1
        self.closed = self._exchange.gather(self._sum.numpy())
        return super().close()

    def _written(self, newest: Mapping[int, object]) -> Iterator[slice]:
        assert self._exchange is not None, "settle() comes before a step"
        return self._exchange.scattered(newest, self._parameters.numpy())

    def is_finite(self, vector: Tensor) -> bool:
        """Return True if the vectors of all ranks are finite."""
        assert self._exchange is not None, "settle() comes before a step"
        return self._exchange.is_true_on_all(super().is_finite(vector))

    def _numbers(self, whole: Array, shard: Shard) -> object:
        rank = self.parts[shard.number].rank
        return self.closed[shard.number] if rank == self._rank.number else RemoteBuffers(rank, self.closings)


@dataclass(frozen=True)
class StepMessage:
    """The first rank's message about a step, in plain values."""

    shards: tuple[tuple[object, ...], ...] | None
    """The fields of each shard; None if unchanged."""
    installed_versions: tuple[tuple[int, int], ...]
    """Shards to install first, with their versions."""
    samples: tuple[int, ...]
    rate: float
    opens_accumulation: bool
    closes: bool
    pull: tuple[int, int]
    behind: int
    next_samples: tuple[tuple[int, ...], ...] = ()
    """Samples of the following steps, as far as known, for ranks that prefetch them."""


class RankSteps:
    """One rank's side of the common steps."""

    def __init__(self, rank: Rank, decay: float, local_steps: OwnSteps, push_samples: int) -> None:
        self._accumulation = RankAccumulation(RankWork(rank, decay), local_steps, push_samples)
        self._rank, self._number = rank, rank.number

    def step_as_leader(self, message: StepMessage, task: StepTask) -> tuple[PortionSum, PushResult | None]:
        """Take a step on the first rank; return the sums and, if the accumulation closes, the push to each
        server.

        After the call nothing refers to pulled buffers.
        """
        self._settle(message)
        self._accumulation.begin(task)
        found = self._accumulation.step(message.samples, message.rate, message.opens_accumulation)
        return found, self._accumulation.close() if message.closes else None

    def step_as_follower(self, message: StepMessage, take: Take, closed: Closed) -> None:
        """Take the same step on a follower: ``take`` returns pulled shards, ``closed`` receives the push."""
        self._settle(message)
        rank_of = {number: each.rank for number, each in self._accumulation.parts.items()}
        own = {
            number: version
            for number, version in message.installed_versions
            if rank_of[number] == self._number
        }
        taken = take(message.pull[0], own)
        newest = [
            (number, version, taken[number] if number in own else RemoteBuffers(rank_of[number]))
            for number, version in message.installed_versions
        ]
        shards, versions, buffers = zip(*newest, strict=True) if newest else ((), (), ())
        pulled = PulledNewer(message.pull[0], "", message.pull[1], shards, versions, buffers)
        task = StepTask(
            [pulled],
            (0, 0),
            message.rate,
            message.opens_accumulation,
            message.closes,
            message.pull,
            message.behind,
        )
        del taken, newest, buffers, pulled
        self._accumulation.begin(task)
        self._accumulation.step(message.samples, message.rate, message.opens_accumulation)
        if message.closes:
            self._accumulation.close()
            closed(self._accumulation.closings, self._accumulation.closed)

    def _settle(self, message: StepMessage) -> None:
        self._rank.expect([message.samples, *message.next_samples])
        if message.shards is not None:
            self._accumulation.settle([Shard(*each) for each in message.shards])  # type: ignore[arg-type]  # as JSON says it


PushResult = tuple[Mapping[str, ServerUpdate], PushedBytes]
Take = Callable[[int, Mapping[int, int]], Mapping[int, object]]
Closed = Callable[[int, Mapping[int, object]], None]
