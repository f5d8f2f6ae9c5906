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
from typing import Protocol, cast

import torch
from torch import Tensor

from cotswold import recipe as recipes
from cotswold.cluster.arithmetic import is_finite
from cotswold.cluster.work import PortionSum, ReplicaWork, Slot, VaryingWork
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
from cotswold.training.learning_works import in_replica
from cotswold.training.shared_parameters import ALIGNED_BYTES

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


class Shared:
    """What the processes share: parameters, a sum of gradients for each, whether it has a batch, the numbers
    of the samples."""

    def __init__(self, parameters: Tensor, processes: int, samples: int) -> None:
        """``samples``: most that are learnt from together. Raises MachineError where there is no memory."""
        row = -(-parameters.nbytes // ALIGNED_BYTES) * ALIGNED_BYTES
        size = (1 + processes) * row + (processes + samples) * torch.int64.itemsize
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
        rest = torch.frombuffer(block.memory, dtype=torch.int64, offset=(1 + processes) * row)
        self.has_batch, self.samples = rest[:processes], rest[processes:]


class HostWork:
    """The leader's side: `ReplicaWork`, and plain steps of its own."""

    def __init__(
        self,
        work: ReplicaWork,
        shared: Shared,
        batch: int,
        queue: socket.socket,
        processes: Sequence[Process],
    ) -> None:
        """``queue``: where batches are put, and answers come from."""
        self._work, self._shared, self._batch = work, shared, batch
        self._queue, self.processes = queue, tuple(processes)
        self._round = 0
        self._selector = selectors.DefaultSelector()
        for each in (queue.fileno(), *(process.fileno() for process in processes)):
            self._selector.register(each, selectors.EVENT_READ)

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
        for order in orders[:ahead]:
            self._queue.send(order)
        value, count, details = 0.0, 0, dict[str, float]()
        for number in range(len(orders)):
            answer = self._answer()
            if number + ahead < len(orders):
                self._queue.send(orders[number + ahead])
            value, count = value + answer.value, count + answer.samples
            for name, more in answer.details.items():
                details[name] = details.get(name, 0.0) + more
        for own in self._shared.sums:
            gradient += own
            own.zero_()
        return PortionSum(value, count, details)

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
def on_host(work: MovableWork, processes: int, batch: int, samples: int) -> Iterator[HostWork]:
    """``work`` by so many processes of this host, as long as the block lasts.

    They learn from ``batch`` samples at a time, and from ``samples`` at most when they are asked. For the
    main thread of a process that has no other thread yet: they are forks of it. Linux alone. Each is kept on
    a core that no other such process has claimed, where there are enough.
    """
    with ExitStack() as held:
        cores = held.enter_context(claimed_cores(processes))
        with staying_on(cores):
            shared = Shared(work.parameters, processes, samples)
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
        yield HostWork(work, shared, batch, ours, started)


@contextmanager
def in_host(recipe: str, store: str, rows: str) -> Iterator[HostWork]:
    """As `learning_works.in_replica`, for a process that leads those of the recipe's `[cluster]`."""
    torch.set_num_threads(1)  # a fork has no other threads of its parent
    parsed = recipes.parse(recipe)
    assert isinstance(parsed.training, DownpourTraining), "others have no replicas"
    work, batch = in_replica(recipe, store, rows), parsed.training.batch_size
    with on_host(work, parsed.cluster.processes, batch, round_of(parsed)) as host:
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
    own, other = shared.sums[number], torch.zeros_like(shared.parameters)
    before = 0
    while True:
        now, start, stop, rate = _ORDER.unpack(queue.recv(_ORDER.size))
        shared.has_batch[number] = 1
        is_first, before = now != before, now
        gradient = own if is_first or not rate else other  # its sum is 0 when a round begins
        found = work.compute(shared.samples[start:stop].tolist(), gradient)
        if rate and is_finite(gradient.numpy()):
            shared.parameters.sub_(gradient, alpha=rate)
        if gradient is other:
            own += other
            other.zero_()
        shared.has_batch[number] = 0
        queue.send(json.dumps([found.value, found.samples, dict(found.details)]).encode())
