"""The work of a replica that is several processes of a host, which share one copy of the weights (Hogwild).

Knows: how samples are dealt to the processes, what they share, whose end ends all. Does not know: servers,
networks, which samples are whose.

One process leads: it has the conversation with the servers, one for the host, and writes what was pulled into
the shared copy. The others are forks of it, each on a core of its own. They take batches from one queue, and
their plain steps write to the shared copy without locks (Chilimbi et al. 2014, sections 3.2.1 and 3.2.2): a
number may be read between two writes, and of two steps that meet in a number one may be lost there. Gradients
are added up by each process apart, so that none is lost on its way to the servers.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from typing import Protocol, cast

import torch
from torch import Tensor

from cotswold import recipe as recipes
from cotswold.data import Store
from cotswold.errors import MachineError, UserError
from cotswold.host import (
    Block,
    Call,
    ForkServer,
    Process,
    claimed_cores,
    inherited,
    keep_freed_bytes,
    stay_on,
    staying_on,
)
from cotswold.recipe import Recipe
from cotswold.recipe.schema import DownpourTraining
from cotswold.replicas.work import ReplicaWork
from cotswold.shards.runtime.arithmetic import is_finite
from cotswold.shards.runtime.work import PortionSum, Slot, VaryingWork
from cotswold.training.async_sgd.replica_task import LearningWork, in_replica
from cotswold.training.async_sgd.shared_memory import ALIGNED_BYTES
from cotswold.training.data.remote import Fed
from cotswold.training.strategies.base import Batch
from cotswold.training.strategies.supervised import needed

_ORDER = struct.Struct("=qqqd")
"""Which round of batches, where the numbers of one begin and end, the rate of its step."""
_ANSWER_BYTES = 4096
_AHEAD = 2
"""Batches in the queue for each process: it finds the next one there."""
_GIVEN = "host"


class MovableWork(ReplicaWork, Protocol):
    """Work whose parameters can lie in memory that processes share."""

    def lie_in(self, vector: Tensor) -> None:
        """Have the parameters lie in this vector from now on, which gets their values."""
        ...


@dataclass(frozen=True)
class Served:
    """Samples that come from data servers to the process that leads, which hands them to the others."""

    patterns: Fed
    shape: tuple[int, int, int]
    """(channel, y, x) of a sample."""
    targets: int
    """Numbers to predict of each; 0 for a class."""


class Shared:
    """What the processes share: parameters, a sum of gradients for each, whether it has a batch, the numbers
    of the samples, and the samples themselves where the process that leads hands them out."""

    def __init__(
        self, parameters: Tensor, processes: int, samples: int, served: Served | None = None
    ) -> None:
        """``samples``: most that are learnt from together. Raises MachineError where there is no memory."""
        row = -(-parameters.nbytes // ALIGNED_BYTES) * ALIGNED_BYTES
        inputs = 0 if served is None else prod(served.shape)
        targets = 0 if served is None else max(1, served.targets)
        handed = torch.int64.itemsize * samples * targets + torch.float32.itemsize * samples * inputs
        size = (1 + processes) * row + (processes + samples) * torch.int64.itemsize + handed
        try:
            block, descriptor = Block.new(0, size)
        except (AttributeError, OSError) as error:
            raise MachineError(f"{size} bytes of shared memory cannot be had: {error}") from error
        os.close(descriptor)
        vectors = [
            torch.frombuffer(
                block.memory, dtype=parameters.dtype, count=parameters.numel(), offset=number * row
            )
            for number in range(1 + processes)
        ]
        self.parameters, self.sums = vectors[0], vectors[1:]
        rest = torch.frombuffer(
            block.memory, dtype=torch.int64, count=processes + samples, offset=(1 + processes) * row
        )
        self.has_batch, self.samples = rest[:processes], rest[processes:]
        self.handed = None if served is None else Handed(block, size - handed, samples, served)


class Handed:
    """Batches that lie in memory which processes share: patterns by their places there."""

    varies = False

    def __init__(self, block: Block, offset: int, samples: int, served: Served) -> None:
        """``samples``: for so many there is room, ``offset`` bytes from the block's beginning."""
        self._shape, self._samples = served.shape, samples
        kind, width = (torch.float32, served.targets) if served.targets else (torch.int64, 1)
        self._targets = torch.frombuffer(block.memory, dtype=kind, count=samples * width, offset=offset)
        if served.targets:
            self._targets = self._targets.view(samples, width)
        offset += samples * max(1, served.targets) * torch.int64.itemsize
        self._inputs = torch.frombuffer(
            block.memory, dtype=torch.float32, count=samples * prod(served.shape), offset=offset
        )

    def __len__(self) -> int:
        return self._samples

    def put(self, start: int, batch: Batch) -> None:
        """Have a batch lie from this place on."""
        stop = start + len(batch.inputs)
        self._of(start, stop).copy_(batch.inputs)
        self._targets[start:stop] = needed(batch.targets)

    def batch(self, numbers: Sequence[int]) -> Batch:
        """The batch that was put at these places, which follow each other; live."""
        start, stop = numbers[0], numbers[-1] + 1
        return Batch(self._of(start, stop), self._targets[start:stop])

    def _of(self, start: int, stop: int) -> Tensor:
        """A batch's inputs, images last."""
        channels, height, width = self._shape
        size = channels * height * width
        own = self._inputs[start * size : stop * size]
        return own.view(height, width, channels, stop - start).permute(3, 2, 0, 1)


class HostWork:
    """The leader's side: `ReplicaWork`, and plain steps of its own."""

    def __init__(
        self,
        work: ReplicaWork,
        shared: Shared,
        batch: int,
        queue: socket.socket,
        processes: Sequence[Process],
        served: Served | None = None,
    ) -> None:
        """``queue``: where batches are put, and answers come from."""
        self._served = served
        self._work, self._shared, self._batch = work, shared, batch
        self._queue, self.processes = queue, tuple(processes)
        self._round = 0
        self._selector = selectors.DefaultSelector()
        for each in (queue.fileno(), *(process.fileno() for process in processes)):
            self._selector.register(each, selectors.EVENT_READ)

    @property
    def is_fed(self) -> bool:
        """Whether data servers make the samples."""
        return self._served is not None

    def expect(self, batches: Sequence[Sequence[int]]) -> None:
        """As `FedWork.expect`; nothing is asked for where each process has samples at hand."""
        if self._served is not None:
            self._served.patterns.expect([part for each in batches for part in self._parts(each)])

    @property
    def is_starved(self) -> bool:
        """Whether the process that leads waits for samples now."""
        return self._served is not None and self._served.patterns.is_starved

    def _parts(self, samples: Sequence[int]) -> list[Sequence[int]]:
        """The batches of these samples."""
        return [samples[start : start + self._batch] for start in range(0, len(samples), self._batch)]

    @property
    def owing(self) -> Sequence[Process]:
        """Those that have a batch."""
        has = self._shared.has_batch.tolist()
        return [each for each, has_one in zip(self.processes, has, strict=True) if has_one]

    is_awaiting = True
    """Whoever leads computes nothing itself."""

    @property
    def parameters(self) -> Tensor:
        """The shared copy, one vector."""
        return self._work.parameters

    @property
    def layout(self) -> Sequence[Slot]:
        """The tensors in it."""
        return self._work.layout

    @property
    def patterns(self) -> int:
        """How many samples there are."""
        return self._work.patterns

    @property
    def varies(self) -> bool:
        """Whether a sample is another one in each epoch."""
        return isinstance(self._work, VaryingWork) and self._work.varies

    @property
    def flops(self) -> tuple[int, int]:
        """Of one sample."""
        return self._work.flops

    def compute(self, samples: Sequence[int], gradient: Tensor) -> PortionSum:
        """Add the gradients of the mean losses of batches of these samples, all at the present parameters."""
        return self.learn(samples, gradient, 0.0)

    def learn(self, samples: Sequence[int], gradient: Tensor, rate: float) -> PortionSum:
        """As `compute`, but each process takes a plain step of this rate on the shared copy after each of its
        batches.

        Raises MachineError where a process ends, UserError where it ended by one.
        """
        self._round += 1
        self._shared.samples[: len(samples)] = torch.tensor(samples, dtype=torch.int64)
        orders = [
            _ORDER.pack(self._round, start, min(start + self._batch, len(samples)), rate)
            for start in range(0, len(samples), self._batch)
        ]
        ahead = _AHEAD * len(self.processes)
        parts = self._parts(samples)
        for number in range(min(ahead, len(orders))):
            self._hand_out(number, orders[number], parts[number])
        value, count, details = 0.0, 0, dict[str, float]()
        for number in range(len(orders)):
            answer = self._answer()
            if number + ahead < len(orders):
                self._hand_out(number + ahead, orders[number + ahead], parts[number + ahead])
            value, count = value + answer.value, count + answer.samples
            for name, more in answer.details.items():
                details[name] = details.get(name, 0.0) + more
        for own in self._shared.sums:
            gradient += own
            own.zero_()
        return PortionSum(value, count, details)

    def _hand_out(self, number: int, order: bytes, samples: Sequence[int]) -> None:
        """Put a batch into the queue, and its samples where the processes find them."""
        if self._served is not None and self._shared.handed is not None:
            self._shared.handed.put(number * self._batch, self._served.patterns.batch(samples))
        self._queue.send(order)

    def _answer(self) -> PortionSum:
        """The next; raises where a process has ended."""
        while True:
            ready = {key.fd for key, _ in self._selector.select()}
            for each in self.processes:
                if each.fileno() in ready and each.code() is not None:
                    kind = UserError if each.code() == UserError.exit_code else MachineError
                    raise kind(f"{each.name} of the replica {each.why()}, and its processes end together")
            if self._queue.fileno() in ready:
                return PortionSum(*json.loads(self._queue.recv(_ANSWER_BYTES)))


@contextmanager
def on_host(
    work: MovableWork, processes: int, batch: int, samples: int, served: Served | None = None
) -> Iterator[HostWork]:
    """``work`` by so many processes of this host, as long as the block lasts.

    With ``served`` samples this process hands them out. They learn from ``batch`` samples at a time, and from
    ``samples`` at most when they are asked. For the main thread of a process that has no other thread yet:
    they are forks of it. Linux alone. Each is kept on a core that no other such process has claimed, where
    there are enough.
    """
    with ExitStack() as held:
        cores = held.enter_context(claimed_cores(processes))
        with staying_on(cores):
            shared = Shared(work.parameters, processes, samples, served)
            work.lie_in(shared.parameters)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        held.enter_context(ours)
        held.enter_context(theirs)
        server = ForkServer.of_this_process({_GIVEN: (work, shared, theirs)})
        held.callback(server.close)
        started = [
            server.start(Call(f"process {number}", f"{__name__}:_live", {"number": number, "core": core}))
            for number, core in enumerate(cores)
        ]
        yield HostWork(work, shared, batch, ours, started, served)


@contextmanager
def in_host(recipe: str, store: str, rows: str, pool: str | None = None) -> Iterator[HostWork]:
    """As `learning_works.in_replica`, for a process that leads those of the recipe's `[cluster]`."""
    torch.set_num_threads(1)  # a fork has no other threads of its parent
    parsed = recipes.parse(recipe)
    assert isinstance(parsed.training, DownpourTraining), "others have no replicas"
    work, batch = in_replica(recipe, store, rows, pool), parsed.training.batch_size
    served = None
    if (fed := work.fed) is not None:
        opened = Store(store)
        shape, classes = opened.shape, not torch.from_numpy(opened.labels("train")).is_floating_point()
        served = Served(fed, (shape.channels, shape.height, shape.width), 0 if classes else opened.outputs)
    with on_host(work, parsed.cluster.processes, batch, round_of(parsed), served) as host:
        yield host


def round_of(recipe: Recipe) -> int:
    """Samples from which the processes of a replica learn before their gradients go to the servers."""
    training = recipe.training
    assert isinstance(training, DownpourTraining), "others have no replicas"
    return training.batch_size * training.push_every * recipe.cluster.processes


def _live(number: int, core: int | None) -> None:
    """The life of a process that computes."""
    stay_on([core])
    keep_freed_bytes()
    torch.set_num_threads(1)
    torch.seed()  # what it drops is its own
    work, shared, queue = cast(tuple[ReplicaWork, Shared, socket.socket], inherited(_GIVEN))  # as given
    if shared.handed is not None and isinstance(work, LearningWork):
        work.read_from(shared.handed)
    own, other = shared.sums[number], torch.zeros_like(shared.parameters)
    before = 0
    while True:
        now, start, stop, rate = _ORDER.unpack(queue.recv(_ORDER.size))
        shared.has_batch[number] = 1
        is_first, before = now != before, now
        gradient = own if is_first or not rate else other  # its sum is 0 when a round begins
        samples = shared.samples[start:stop].tolist() if shared.handed is None else range(start, stop)
        found = work.compute(samples, gradient)
        if rate and is_finite(gradient.numpy()):
            shared.parameters.sub_(gradient, alpha=rate)
        if gradient is other:
            own += other
            other.zero_()
        shared.has_batch[number] = 0
        queue.send(json.dumps([found.value, found.samples, dict(found.details)]).encode())
