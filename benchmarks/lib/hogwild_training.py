"""Training by processes of one host on one copy of the weights, without locks (Hogwild; Chilimbi et al.
2014).

Knows: the work and the shared lines of each process, their common start, their supervision. Does not know:
networks, the origin of samples, servers.

Each process takes its own batches and adds its steps to the shared weights while others read and write them
(Niu et al. 2011; Chilimbi et al. 2014, section 3.2.2). A number may be read between two writes, and one of
two concurrent steps on a number may be lost. So results differ from run to run, but one process has the bits
of plain SGD.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cotswold import recipe as recipes
from cotswold.data import Store
from cotswold.errors import MachineError, RecipeError, UserError
from cotswold.host import (
    Call,
    ForkServer,
    Process,
    assign_cores,
    exit_text,
    keep_freed_memory,
    pin_to,
    pinned_to,
)
from cotswold.host.processes import import_function
from cotswold.optim.schedule import Schedule, rate_at
from cotswold.shards.runtime.work import FedWork
from cotswold.training.async_sgd.shared_memory import ALIGNED_BYTES, SharedMemoryLocation, SharedParameters
from cotswold.training.data.augmentation import augmentation_of
from cotswold.training.data.indexed import IndexedSamples, StoreSamples
from cotswold.training.data.remote import PoolLocation, RemoteSamples, WorkerSamples
from cotswold.training.jobs.restore import supervised_network
from cotswold.training.losses import Loss, loss_of
from cotswold.training.strategies.supervised import require_targets

POLL_SECONDS = 1e-3
"""Seconds between checks: of a process for the start, and of the driver for the end."""
_AHEAD = 4
"""Number of batches that a process requests in advance from data servers, including the current one."""


class Learner(Protocol):
    """A module, and its loss on samples by index, made in each process by a factory."""

    @property
    def module(self) -> nn.Module:
        """The module, with the same initial values in every process."""
        ...

    @property
    def samples(self) -> int:
        """Number of samples."""
        ...

    def loss(self, numbers: Sequence[int]) -> Tensor:
        """Return the mean loss of these samples at the current weights, ready for ``backward``."""
        ...


@dataclass(frozen=True)
class Steps:
    """The plain steps of a run, of all processes together."""

    samples: int
    """Samples to learn from, in whole batches; every process takes an equal part."""
    batch: int = 100
    rate: float = 0.05
    schedule: Schedule = "constant"
    warmup: float = 0.0
    """Fraction of each process's steps that warm up."""
    seed: int = 0
    """Seed of the order of samples, which is new each epoch."""

    def count(self, processes: int) -> int:
        """Return the steps of one process; raise UserError if there are none."""
        if min(processes, self.batch, self.samples // (self.batch * max(processes, 1))) < 1:
            raise UserError(
                f"{self.samples} samples give no batch of {self.batch} to each of {processes} "
                "processes; give more"
            )
        return self.samples // (self.batch * processes)

    def numbers(self, step: int, there: int) -> list[int]:
        """Return the samples of a batch, with batches counted from 0 over all processes; ``there`` is the
        number of samples. An epoch leaves out an incomplete last batch."""
        batches = max(there // self.batch, 1)
        epoch, place = divmod(step, batches)
        order = _order(self.seed, epoch, there)
        numbers: list[int] = order[place * self.batch : (place + 1) * self.batch].tolist()
        return numbers


@dataclass(frozen=True)
class Done:
    """Work done by one process."""

    samples: int
    seconds: float
    """Seconds from the common start to the last step."""
    loss: float
    """Loss of the last batch."""

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds if self.seconds else 0.0


def train(
    factory: str,
    arguments: Mapping[str, object],
    steps: Steps,
    processes: int,
    watch: Callable[[Sequence[Done]], object] = lambda done: None,
) -> tuple[nn.Module, list[Done]]:
    """Train by a number of processes; return the trained module and the work of each process.

    ``factory`` is ``"module:function"``, which makes the `Learner` from ``arguments`` (JSON values) in every
    process. ``watch`` receives the work so far, several times per second. The processes are pinned, one per
    core, and end with this one, even if it is killed. Raises MachineError if a process exits before its end.
    """
    count = steps.count(processes)
    cores = assign_cores(processes)
    learner = learner_of(factory, arguments)
    if learner.samples < steps.batch:
        raise UserError(f"{learner.samples} samples give no batch of {steps.batch}; use a smaller batch")
    module = learner.module
    with pinned_to(cores):
        shared = SharedParameters(module, extra_bytes=board_bytes(processes))
    board = SharedProgress(shared, processes)
    with closing(shared), closing(ForkServer(("torch._dynamo", "lib.hogwild_training"))) as server:
        started = [
            server.start(
                Call(
                    f"process {number}",
                    "lib.hogwild_training:learn",
                    {
                        "factory": factory,
                        "arguments": dict(arguments),
                        "steps": asdict(steps),
                        "place": asdict(shared.location),
                        "number": number,
                        "processes": processes,
                        "core": core,
                    },
                )
            )
            for number, core in enumerate(cores)
        ]
        wait_for(started, board.ready)
        board.go()
        wait_for(started, lambda: board.done(count * steps.batch), lambda: watch(board.read()))
        _await_ends(started)
    return module, board.read()


def learn(
    factory: str,
    arguments: Mapping[str, object],
    steps: Mapping[str, object],
    place: Mapping[str, object],
    number: int,
    processes: int,
    core: int | None,
) -> None:
    """Run in each process, started by `train`."""
    pin_to([core])
    keep_freed_memory()
    torch.set_num_threads(1)
    learner = learner_of(factory, arguments)
    plan = Steps(**steps)  # type: ignore[arg-type]  # from asdict
    # on a private copy of the weights: preparation and compilation at first use precede the clock
    learner.loss(plan.numbers(number, learner.samples)).backward()  # type: ignore[no-untyped-call]  # torch
    learner.module.zero_grad()
    shared = SharedParameters.join(learner.module, SharedMemoryLocation(**place))  # type: ignore[arg-type]  # the same
    board = SharedProgress(shared, processes)
    weights = [each for each in learner.module.parameters() if each.requires_grad]
    count = plan.count(processes)
    torch.manual_seed(plan.seed + number)  # each process has its own dropout
    board.await_go(number)
    begun = time.perf_counter()
    for step in range(count):
        places = range(step * processes + number, count * processes, processes)
        if isinstance(learner, FedWork) and learner.is_fed:
            learner.expect([plan.numbers(place, learner.samples) for place in places[:_AHEAD]])
        loss = learner.loss(plan.numbers(places[0], learner.samples))
        rate = rate_at(step, count, plan.rate, plan.schedule, plan.warmup)
        take_step(loss, weights, rate)
        board.write(number, (step + 1) * plan.batch, time.perf_counter() - begun, float(loss.detach()))


def take_step(loss: Tensor, weights: Sequence[Tensor], rate: float) -> None:
    """Update w ← w - rate · gradient in place, while other processes may write too."""
    gradients = torch.autograd.grad(loss, weights, allow_unused=True)
    with torch.no_grad():
        for weight, gradient in zip(weights, gradients, strict=True):
            if gradient is not None:
                weight.sub_(gradient, alpha=rate)


class SharedProgress:
    """Status of the processes behind the shared weights, each in its own cache line."""

    def __init__(self, shared: SharedParameters, processes: int) -> None:
        rows = torch.frombuffer(shared.extra, dtype=torch.float64).view(processes + 1, -1)
        self._begin, self._lines = rows[0], rows[1:]

    def await_go(self, number: int) -> None:
        """Report that a process is ready, and wait for the start."""
        self._lines[number, 0] = 1
        while not self._begin[0]:
            time.sleep(POLL_SECONDS)

    def ready(self) -> bool:
        """True if all processes are ready."""
        return bool(self._lines[:, 0].all())

    def go(self) -> None:
        """Start all processes."""
        self._begin[0] = 1

    def write(self, number: int, samples: int, seconds: float, loss: float) -> None:
        """Record the work of a process."""
        line = self._lines[number]
        line[2], line[3] = seconds, loss
        line[1] = samples

    def done(self, samples: int) -> bool:
        """True if every process has learnt from ``samples`` samples."""
        return bool((self._lines[:, 1] >= samples).all())

    def read(self) -> list[Done]:
        """Return the work of each process so far."""
        return [Done(int(samples), seconds, loss) for _, samples, seconds, loss, *_ in self._lines.tolist()]


def board_bytes(processes: int) -> int:
    """Return the bytes of a board."""
    return ALIGNED_BYTES * (processes + 1)


def wait_for(
    processes: Sequence[Process], is_so: Callable[[], bool], meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Wait until a condition holds; raise MachineError if a process fails before."""
    while not is_so():
        for process in processes:
            if process.code() not in (None, 0):
                raise MachineError(f"{process.name} {process.why()}; the other processes were stopped")
        meanwhile()
        time.sleep(10 * POLL_SECONDS)


def _await_ends(processes: Sequence[Process]) -> None:
    wait_for(processes, lambda: all(process.code() is not None for process in processes))
    for process in processes:
        if code := process.code():
            raise MachineError(f"{process.name} {exit_text(code)} after its last step")


def learner_of(factory: str, arguments: Mapping[str, object]) -> Learner:
    """Return the learner made by ``"module:function"``."""
    return cast(Learner, import_function(factory)(**arguments))


@lru_cache(maxsize=1)
def _order(seed: int, epoch: int, there: int) -> NDArray[np.int64]:
    return np.random.default_rng((seed, epoch)).permutation(there)


class RecipeLearner:
    """The layers of a recipe with the training samples of its store."""

    def __init__(self, module: nn.Module, samples: IndexedSamples, loss: Loss) -> None:
        self.module, self._samples, self._loss = module.train(), samples, loss

    @property
    def samples(self) -> int:
        """Number of training samples."""
        return len(self._samples)

    @property
    def is_fed(self) -> bool:
        """True if data servers make the samples."""
        return isinstance(self._samples, WorkerSamples)

    def expect(self, batches: Sequence[Sequence[int]]) -> None:
        """Prefetch like `FedWork.expect`; local samples need no request."""
        if isinstance(self._samples, WorkerSamples):
            self._samples.expect(batches)

    @property
    def is_starved(self) -> bool:
        """True while the learner waits for samples."""
        return isinstance(self._samples, WorkerSamples) and self._samples.is_starved

    def loss(self, numbers: Sequence[int]) -> Tensor:
        """Return the mean loss of these samples."""
        batch = self._samples.batch(numbers)
        return self._loss(self.module(batch.inputs), require_targets(batch.targets))


def of_recipe(recipe: str, store: str, rows: str | None = None, pool: str | None = None) -> RecipeLearner:
    """Make the learner from a recipe's text and its store.

    ``rows`` is a folder of samples written by `patterns.write_rows`, of which all processes share one copy;
    ``pool`` is the `PoolLocation` of data servers instead, opened with the token in the environment.
    """
    read, opened = recipes.parse(recipe), Store(store)
    if augmentation_of(read, opened) is not None:
        raise RecipeError(
            "lock-free steps do not support data.augment; remove it, or use strategy downpour "
            "with cluster.processes"
        )
    samples: IndexedSamples
    if pool is None:
        samples = StoreSamples(opened, "train", None if rows is None else Path(rows))
    else:
        samples = RemoteSamples(opened, PoolLocation.parsed(pool))
    return RecipeLearner(supervised_network(read, opened.outputs), samples, loss_of(read))
