"""Hogwild replicas: several processes of a host that share one copy of the weights.

Knows: how samples are dealt to the processes, what they share, that one exit ends all. Does not know:
servers, networks, which samples belong to which replica.

One process leads: it talks to the servers for the host, and writes pulled values into the shared copy. The
others are its forks, each on a separate core. They take batches from one queue, and write SGD steps to the
shared copy without locks (Chilimbi et al. 2014, sections 3.2.1 and 3.2.2). A read may see a value between two
writes, and of two steps that write the same value at once, one may be lost. Each process sums its gradients
separately, so no gradient is lost on its way to the servers.
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
    Call,
    ForkServer,
    MemoryBlock,
    Process,
    claimed_cores,
    inherited,
    keep_freed_memory,
    pin_to,
    pinned_to,
)
from cotswold.recipe import Recipe
from cotswold.recipe.schema import DownpourTraining
from cotswold.replicas.work import ReplicaWork
from cotswold.shards.runtime.arithmetic import is_finite
from cotswold.shards.runtime.work import PortionSum, TensorSlot, VaryingWork
from cotswold.training.async_sgd.replica_task import ReplicaTask, build_replica_task
from cotswold.training.async_sgd.shared_memory import ALIGNED_BYTES
from cotswold.training.data.remote import WorkerSamples
from cotswold.training.strategies.base import Batch
from cotswold.training.strategies.supervised import require_targets

_ORDER = struct.Struct("=qqqd")
"""The round, the first and last index of a batch, and the rate of its step."""
_ANSWER_BYTES = 4096
_QUEUED_BATCHES_PER_PROCESS = 2
"""Batches per process in the queue, so that the next one is available at once."""
_GIVEN = "host"


class RelocatableTask(ReplicaWork, Protocol):
    """A task whose parameters can move into shared memory."""

    def bind_parameters(self, vector: Tensor) -> None:
        """Move the parameters and their values into this vector."""
        ...


@dataclass(frozen=True)
class RemoteBatches:
    """Samples from data servers, which the leader receives and passes to the other processes."""

    samples: WorkerSamples
    shape: tuple[int, int, int]
    """(channel, y, x) of a sample."""
    targets: int
    """Regression targets per sample; 0 for classes."""


class Shared:
    """The memory that the processes share.

    It holds the parameters, a sum of gradients and a busy flag for each process, the indices of samples, and
    the samples themselves if the leader distributes them.
    """

    def __init__(
        self, parameters: Tensor, processes: int, samples: int, served: RemoteBatches | None = None
    ) -> None:
        """``samples`` is the maximum in one round. Raises MachineError without shared memory."""
        row = -(-parameters.nbytes // ALIGNED_BYTES) * ALIGNED_BYTES
        inputs = 0 if served is None else prod(served.shape)
        targets = 0 if served is None else max(1, served.targets)
        handed = torch.int64.itemsize * samples * targets + torch.float32.itemsize * samples * inputs
        size = (1 + processes) * row + (processes + samples) * torch.int64.itemsize + handed
        try:
            block, descriptor = MemoryBlock.new(0, size)
        except (AttributeError, OSError) as error:
            raise MachineError(f"{size} bytes of shared memory are not available: {error}") from error
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
        self.batches = None if served is None else SharedBatches(block, size - handed, samples, served)


class SharedBatches:
    """Batches in shared memory, indexed by their position."""

    is_augmented = False

    def __init__(self, block: MemoryBlock, offset: int, samples: int, served: RemoteBatches) -> None:
        """``samples`` is the capacity; the memory starts ``offset`` bytes into the block."""
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
        """Store a batch from position ``start`` on."""
        stop = start + len(batch.inputs)
        self._batch_inputs(start, stop).copy_(batch.inputs)
        self._targets[start:stop] = require_targets(batch.targets)

    def batch(self, numbers: Sequence[int]) -> Batch:
        """Return the batch stored at these consecutive positions, without a copy."""
        start, stop = numbers[0], numbers[-1] + 1
        return Batch(self._batch_inputs(start, stop), self._targets[start:stop])

    def _batch_inputs(self, start: int, stop: int) -> Tensor:
        """Return a batch's inputs, images last."""
        channels, height, width = self._shape
        size = channels * height * width
        own = self._inputs[start * size : stop * size]
        return own.view(height, width, channels, stop - start).permute(3, 2, 0, 1)


class HogwildReplica:
    """The leader's task: a `ReplicaWork` with local steps."""

    def __init__(
        self,
        work: ReplicaWork,
        shared: Shared,
        batch: int,
        queue: socket.socket,
        processes: Sequence[Process],
        served: RemoteBatches | None = None,
    ) -> None:
        """Batches are put into ``queue``, which also returns the answers."""
        self._served = served
        self._work, self._shared, self._batch = work, shared, batch
        self._queue, self.processes = queue, tuple(processes)
        self._round = 0
        self._selector = selectors.DefaultSelector()
        for each in (queue.fileno(), *(process.fileno() for process in processes)):
            self._selector.register(each, selectors.EVENT_READ)

    @property
    def is_fed(self) -> bool:
        """True if data servers make the samples."""
        return self._served is not None

    def expect(self, batches: Sequence[Sequence[int]]) -> None:
        """Prefetch batches, as `FedWork.expect`; local samples need no request."""
        if self._served is not None:
            self._served.samples.expect([part for each in batches for part in self._parts(each)])

    @property
    def is_starved(self) -> bool:
        """True while the leader waits for samples."""
        return self._served is not None and self._served.samples.is_starved

    def _parts(self, samples: Sequence[int]) -> list[Sequence[int]]:
        """Return the batches of these samples."""
        return [samples[start : start + self._batch] for start in range(0, len(samples), self._batch)]

    @property
    def owing(self) -> Sequence[Process]:
        """The processes that have a batch."""
        has = self._shared.has_batch.tolist()
        return [each for each, has_one in zip(self.processes, has, strict=True) if has_one]

    is_awaiting = True
    """The leader only waits; it computes nothing itself."""

    @property
    def parameters(self) -> Tensor:
        """The shared copy, as one vector."""
        return self._work.parameters

    @property
    def layout(self) -> Sequence[TensorSlot]:
        """The tensors in the vector."""
        return self._work.layout

    @property
    def samples(self) -> int:
        """The number of samples."""
        return self._work.samples

    @property
    def varies(self) -> bool:
        """True if samples are augmented differently in each epoch."""
        return isinstance(self._work, VaryingWork) and self._work.varies

    @property
    def flops(self) -> tuple[int, int]:
        """FLOPs per sample of value alone, and of value and gradient."""
        return self._work.flops

    def compute(self, samples: Sequence[int], gradient: Tensor) -> PortionSum:
        """Add the gradients of the mean losses of these samples' batches, all at the present parameters."""
        return self.learn(samples, gradient, 0.0)

    def learn(self, samples: Sequence[int], gradient: Tensor, rate: float) -> PortionSum:
        """Add gradients as `compute`; after each batch its process takes an SGD step on the shared copy.

        Raises MachineError if a process exits, or UserError if one raised it.
        """
        self._round += 1
        self._shared.samples[: len(samples)] = torch.tensor(samples, dtype=torch.int64)
        orders = [
            _ORDER.pack(self._round, start, min(start + self._batch, len(samples)), rate)
            for start in range(0, len(samples), self._batch)
        ]
        ahead = _QUEUED_BATCHES_PER_PROCESS * len(self.processes)
        parts = self._parts(samples)
        for number in range(min(ahead, len(orders))):
            self._enqueue(number, orders[number], parts[number])
        value, count, details = 0.0, 0, dict[str, float]()
        for number in range(len(orders)):
            answer = self._answer()
            if number + ahead < len(orders):
                self._enqueue(number + ahead, orders[number + ahead], parts[number + ahead])
            value, count = value + answer.value, count + answer.samples
            for name, more in answer.details.items():
                details[name] = details.get(name, 0.0) + more
        for own in self._shared.sums:
            gradient += own
            own.zero_()
        return PortionSum(value, count, details)

    def _enqueue(self, number: int, order: bytes, samples: Sequence[int]) -> None:
        """Put a batch into the queue, and its samples into shared memory."""
        if self._served is not None and self._shared.batches is not None:
            self._shared.batches.put(number * self._batch, self._served.samples.batch(samples))
        self._queue.send(order)

    def _answer(self) -> PortionSum:
        """Return the next answer; raises if a process has exited."""
        while True:
            ready = {key.fd for key, _ in self._selector.select()}
            for each in self.processes:
                if each.fileno() in ready and each.code() is not None:
                    kind = UserError if each.code() == UserError.exit_code else MachineError
                    raise kind(f"{each.name} of the replica {each.why()}; its processes end together")
            if self._queue.fileno() in ready:
                return PortionSum(*json.loads(self._queue.recv(_ANSWER_BYTES)))


@contextmanager
def start_hogwild(
    work: RelocatableTask, processes: int, batch: int, samples: int, served: RemoteBatches | None = None
) -> Iterator[HogwildReplica]:
    """Run ``work`` on several processes of this host while the context is open.

    The leader distributes the samples of ``served``. The processes compute ``batch`` samples at a time and at
    most ``samples`` per round. Call it in the main thread of a process without other threads, because the
    processes are forks; Linux only. If there are enough cores, each process stays on a separate one.
    """
    with ExitStack() as held:
        cores = held.enter_context(claimed_cores(processes))
        with pinned_to(cores):
            shared = Shared(work.parameters, processes, samples, served)
            work.bind_parameters(shared.parameters)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        held.enter_context(ours)
        held.enter_context(theirs)
        server = ForkServer.of_this_process({_GIVEN: (work, shared, theirs)})
        held.callback(server.close)
        started = [
            server.start(
                Call(f"process {number}", f"{__name__}:_run_process", {"number": number, "core": core})
            )
            for number, core in enumerate(cores)
        ]
        yield HogwildReplica(work, shared, batch, ours, started, served)


@contextmanager
def build_hogwild_replica(
    recipe: str, store: str, rows: str, pool: str | None = None
) -> Iterator[HogwildReplica]:
    """Run a recipe's replica on the processes of its `[cluster]`, in the leader."""
    torch.set_num_threads(1)  # a fork has no other threads of its parent
    parsed = recipes.parse(recipe)
    assert isinstance(parsed.training, DownpourTraining), "only strategy downpour has replicas"
    work, batch = build_replica_task(recipe, store, rows, pool), parsed.training.batch_size
    served = None
    if (fed := work.remote_samples) is not None:
        opened = Store(store)
        shape, classes = opened.shape, not torch.from_numpy(opened.labels("train")).is_floating_point()
        served = RemoteBatches(
            fed, (shape.channels, shape.height, shape.width), 0 if classes else opened.outputs
        )
    with start_hogwild(work, parsed.cluster.processes, batch, round_of(parsed), served) as host:
        yield host


def round_of(recipe: Recipe) -> int:
    """Return the samples of a round, after which the gradients of a replica go to the servers."""
    training = recipe.training
    assert isinstance(training, DownpourTraining), "only strategy downpour has replicas"
    return training.batch_size * training.push_every * recipe.cluster.processes


def _run_process(number: int, core: int | None) -> None:
    """Run a computing process."""
    pin_to([core])
    keep_freed_memory()
    torch.set_num_threads(1)
    torch.seed()  # dropout differs between processes
    work, shared, queue = cast(tuple[ReplicaWork, Shared, socket.socket], inherited(_GIVEN))  # the leader's
    if shared.batches is not None and isinstance(work, ReplicaTask):
        work.read_from(shared.batches)
    own, other = shared.sums[number], torch.zeros_like(shared.parameters)
    before = 0
    while True:
        now, start, stop, rate = _ORDER.unpack(queue.recv(_ORDER.size))
        shared.has_batch[number] = 1
        is_first, before = now != before, now
        gradient = own if is_first or not rate else other  # its sum is 0 at the start of a round
        samples = shared.samples[start:stop].tolist() if shared.batches is None else range(start, stop)
        found = work.compute(samples, gradient)
        if rate and is_finite(gradient.numpy()):
            shared.parameters.sub_(gradient, alpha=rate)
        if gradient is other:
            own += other
            other.zero_()
        shared.has_batch[number] = 0
        queue.send(json.dumps([found.value, found.samples, dict(found.details)]).encode())
