"""The steps of a replica that is a gang: all ranks take them together, each on its own parts.

Knows: what a rank adds up, what the first rank tells the others of a step. Does not know: servers, when a
push is due, samples' places.

Each rank has its parts of the parameters, one after the other in a vector, and the same accumulation over it
that a replica of one process has over the whole. A pull comes to the ranks that have its shards
(`gang_shards`), and a closed accumulation goes from there; what lies on a border between ranks passes between
them (`gang_exchange`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from cotswold.errors import MachineError, told
from cotswold.launch.watch.failure import peer_lost
from cotswold.paramserver.core.rank_fanout import RemoteBuffers
from cotswold.paramserver.core.replica_session import StepTask
from cotswold.paramserver.core.update_sequence import ServerUpdate
from cotswold.replicas.accumulation import Accumulation, OwnSteps, Pushed
from cotswold.replicas.vectors import HostVectors
from cotswold.shards.runtime.arithmetic import Array
from cotswold.shards.runtime.work import PortionSum, Slot
from cotswold.training.model_parallel.full_batch_worker import Rank
from cotswold.training.model_parallel.gang_exchange import ShardExchange
from cotswold.training.model_parallel.shards import ShardParts, parts_of_shards
from cotswold.wire import PulledNewer, Shard


class RankWork:
    """The mean loss of a batch, as a function of one rank's parts: `ReplicaWork`, called by all ranks in one
    order."""

    def __init__(self, rank: Rank, decay: float) -> None:
        """``decay``: this times a weight is added to its gradient."""
        self.rank, self._decay = rank, decay
        with torch.no_grad():
            self.parameters = torch.cat([each.detach().reshape(-1) for each in rank.parts])
        self.layout: Sequence[Slot] = rank.whole.layout
        """Of the whole vector."""

    @property
    def patterns(self) -> int:
        """How many samples there are."""
        return self.rank.whole.patterns

    @property
    def flops(self) -> tuple[int, int]:
        """Of one sample, by all ranks."""
        return self.rank.whole.flops

    def compute(self, samples: Sequence[int], gradient: Tensor) -> PortionSum:
        """Add this rank's parts of the gradient of these samples' mean loss; the sums are those of all.

        Raises what a rank's work raises, and MachineError on ranks whose own did not fail.
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
            if peer_lost(error):
                raise
            found = error
        able = torch.tensor([int(isinstance(found, PortionSum))], dtype=torch.int64)
        all_able = [torch.zeros_like(able) for _ in range(self.rank.size)]
        dist.all_gather(all_able, able, group=self.rank.wire)
        if isinstance(found, Exception):
            if self.rank.number:  # the first says it to whoever asked
                print(f"rank {self.rank.number}: {told(found)}", flush=True)
            raise found
        failed = [rank for rank, each in enumerate(all_able) if not each.item()]
        if failed:
            raise MachineError(f"rank {failed[0]} of the gang could not compute it; see what it prints")
        return found

    def _cut(self, vector: Tensor) -> Iterator[Tensor]:
        return iter(torch.split(vector, [part.numel() for part in self.rank.parts]))


class RankAccumulation(Accumulation, HostVectors):
    """The steps of one rank since the last push."""

    def __init__(self, work: RankWork, own: OwnSteps, push_samples: int) -> None:
        layout = tuple((slot.name, slot.rows, slot.columns) for slot in work.layout)
        super().__init__(work, layout, own, push_samples, self)
        self._rank = work.rank
        self.closings = 0
        """Accumulations that were closed."""
        self.closed: Mapping[int, memoryview] = {}
        """What this rank pushes of the last, by shard."""
        self._exchange: ShardExchange | None = None
        self.parts: Mapping[int, ShardParts] = {}
        """Who has what of each shard."""

    def settle(self, shards: Sequence[Shard]) -> None:
        """Take steps on these from now on."""
        self.lay(shards)
        self.parts = parts_of_shards(self._rank.shapes, self._rank.every_box, shards)
        self._exchange = ShardExchange(self.parts, self._rank.number, self._rank.wire)

    def close(self) -> tuple[Mapping[str, ServerUpdate], Pushed]:
        """What goes to each server; what other ranks push is `RemoteBuffers`."""
        assert self._exchange is not None, "it is told of shards before a step"
        self.closings += 1
        self.closed = self._exchange.gathered(self._sum.numpy())
        return super().close()

    def _written(self, newest: Mapping[int, object]) -> Iterator[slice]:
        assert self._exchange is not None, "it is told of shards before a step"
        return self._exchange.scattered(newest, self._parameters.numpy())

    def is_finite(self, vector: Tensor) -> bool:
        """As `Vectors.is_finite`, of all ranks' vectors."""
        assert self._exchange is not None, "it is told of shards before a step"
        return self._exchange.all_of(super().is_finite(vector))

    def _numbers(self, whole: Array, shard: Shard) -> object:
        rank = self.parts[shard.number].rank
        return self.closed[shard.number] if rank == self._rank.number else RemoteBuffers(rank, self.closings)


@dataclass(frozen=True)
class Told:
    """What the first rank says of a step, in plain values."""

    shards: tuple[tuple[object, ...], ...] | None
    """The fields of each; None where they are as before."""
    installs: tuple[tuple[int, int], ...]
    """Shards that are put in their place first, and their versions."""
    samples: tuple[int, ...]
    rate: float
    opens: bool
    closes: bool
    pull: tuple[int, int]
    behind: int
    coming: tuple[tuple[int, ...], ...] = ()
    """Samples of the steps after it, as far as they are known, for ranks that ask for them ahead."""


class RankSteps:
    """One rank's side of the steps, which all ranks take together."""

    def __init__(self, rank: Rank, decay: float, own: OwnSteps, push_samples: int) -> None:
        self._accumulation = RankAccumulation(RankWork(rank, decay), own, push_samples)
        self._rank, self._number = rank, rank.number

    def lead(self, said: Told, task: StepTask) -> tuple[PortionSum, Closing | None]:
        """A step of the first rank: the sums of all, and, where it closes the accumulation, what goes to each
        server. Nothing refers to what was pulled any more then."""
        self._settle(said)
        self._accumulation.begin(task)
        found = self._accumulation.step(said.samples, said.rate, said.opens)
        return found, self._accumulation.close() if said.closes else None

    def obey(self, said: Told, take: Take, closed: Closed) -> None:
        """The same step of another: ``take`` gives what it has pulled, ``closed`` hears what it pushes."""
        self._settle(said)
        rank_of = {number: each.rank for number, each in self._accumulation.parts.items()}
        own = {number: version for number, version in said.installs if rank_of[number] == self._number}
        taken = take(said.pull[0], own)
        newest = [
            (number, version, taken[number] if number in own else RemoteBuffers(rank_of[number]))
            for number, version in said.installs
        ]
        shards, versions, buffers = zip(*newest, strict=True) if newest else ((), (), ())
        pulled = PulledNewer(said.pull[0], "", said.pull[1], shards, versions, buffers)
        task = StepTask([pulled], (0, 0), said.rate, said.opens, said.closes, said.pull, said.behind)
        del taken, newest, buffers, pulled
        self._accumulation.begin(task)
        self._accumulation.step(said.samples, said.rate, said.opens)
        if said.closes:
            self._accumulation.close()
            closed(self._accumulation.closings, self._accumulation.closed)

    def _settle(self, said: Told) -> None:
        self._rank.expect([said.samples, *said.coming])
        if said.shards is not None:
            self._accumulation.settle([Shard(*each) for each in said.shards])  # type: ignore[arg-type]  # as JSON says it


Closing = tuple[Mapping[str, ServerUpdate], Pushed]
Take = Callable[[int, Mapping[int, int]], Mapping[int, object]]
Closed = Callable[[int, Mapping[int, object]], None]
