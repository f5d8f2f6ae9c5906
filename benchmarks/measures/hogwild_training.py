"""Processes of one host that learn on one copy of the weights, without locks (Hogwild; Chilimbi et al. 2014).

Knows: what each process computes and writes, how processes begin together and are watched. Does not know:
networks, where samples come from, servers.

Each process takes batches of its own, and adds its steps to the shared weights while others read and write
them (Niu et al. 2011; Chilimbi et al. 2014, section 3.2.2). A number may be read between two writes, and one
of two steps may be lost where both meet in it; so results differ from run to run, but with one process they
have the bits of plain SGD.
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
    keep_freed_bytes,
    pin_to,
    pinned_to,
)
from cotswold.host.processes import import_function
from cotswold.optim.schedule import Schedule, rate_at
from cotswold.shards.runtime.work import FedWork
from cotswold.training.async_sgd.shared_memory import ALIGNED_BYTES, Place, SharedParameters
from cotswold.training.data.augmentation import augmentation_of
from cotswold.training.data.indexed import IndexedSamples, StoreSamples
from cotswold.training.data.remote import PoolPlace, RemoteSamples, WorkerSamples
from cotswold.training.jobs.restore import supervised_network
from cotswold.training.losses import Loss, loss_of
from cotswold.training.strategies.supervised import require_targets

POLL_SECONDS = 1e-3
"""How often a process looks whether all are ready, and the driver whether they are done."""
_AHEAD = 4
"""Batches that a process knows: that which it computes, and those of which it asks data servers ahead."""


class Learner(Protocol):
    """What a process learns, made in each by a factory: a module, and its loss on samples by number."""

    @property
    def module(self) -> nn.Module:
        """The module, with the same first values in every process."""
        ...

    @property
    def samples(self) -> int:
        """How many samples there are."""
        ...

    def loss(self, numbers: Sequence[int]) -> Tensor:
        """The mean loss of these samples at the module's present weights, ready for ``backward``."""
        ...


@dataclass(frozen=True)
class Steps:
    """The plain steps of a run, of all processes together."""

    samples: int
    """How many are learnt from, in whole batches; every process takes an equal part."""
    batch: int = 100
    rate: float = 0.05
    schedule: Schedule = "constant"
    warmup: float = 0.0
    """Each process follows the schedule by its own steps."""
    seed: int = 0
    """Of the order of samples: a new one each epoch."""

    def count(self, processes: int) -> int:
        """Steps of one process; raises UserError where there are none."""
        if min(processes, self.batch, self.samples // (self.batch * max(processes, 1))) < 1:
            raise UserError(
                f"{self.samples} samples are no batch of {self.batch} for each of {processes} "
                "processes; give more"
            )
        return self.samples // (self.batch * processes)

    def numbers(self, step: int, there: int) -> list[int]:
        """The samples of one of all batches, counted from 0 over all processes; ``there`` is how many there
        are. An epoch leaves out what makes no whole batch."""
        batches = max(there // self.batch, 1)
        epoch, place = divmod(step, batches)
        order = _order(self.seed, epoch, there)
        numbers: list[int] = order[place * self.batch : (place + 1) * self.batch].tolist()
        return numbers


@dataclass(frozen=True)
class Done:
    """What one process has done."""

    samples: int
    seconds: float
    """From when all were ready to its last step."""
    loss: float
    """Of its last batch."""

    @property
    def rate(self) -> float:
        """Samples a second."""
        return self.samples / self.seconds if self.seconds else 0.0


def train(
    factory: str,
    arguments: Mapping[str, object],
    steps: Steps,
    processes: int,
    watch: Callable[[Sequence[Done]], object] = lambda done: None,
) -> tuple[nn.Module, list[Done]]:
    """Train by so many processes; the module as they leave it, and what each has done.

    ``factory`` is ``"module:function"``, which makes the `Learner` from ``arguments`` (what JSON can say) in
    every process; ``watch`` is told what was done, some times a second. The processes are pinned, one a core,
    and end with this one, however that ends. Raises MachineError where one of them ends before it is done.
    """
    count = steps.count(processes)
    cores = assign_cores(processes)
    learner = learner_of(factory, arguments)
    if learner.samples < steps.batch:
        raise UserError(f"{learner.samples} samples are no batch of {steps.batch}; take smaller ones")
    module = learner.module
    with pinned_to(cores):
        shared = SharedParameters(module, extra_bytes=board_bytes(processes))
    board = Board(shared, processes)
    with closing(shared), closing(ForkServer(("torch._dynamo", "measures.hogwild_training"))) as server:
        started = [
            server.start(
                Call(
                    f"process {number}",
                    "measures.hogwild_training:learn",
                    {
                        "factory": factory,
                        "arguments": dict(arguments),
                        "steps": asdict(steps),
                        "place": asdict(shared.place),
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
    """What each process does: `train` calls it there."""
    pin_to([core])
    keep_freed_bytes()
    torch.set_num_threads(1)
    learner = learner_of(factory, arguments)
    plan = Steps(**steps)  # type: ignore[arg-type]  # asdict of such a one
    # on its own copy of the weights: what is made and compiled at first use is made before the clock starts
    learner.loss(plan.numbers(number, learner.samples)).backward()  # type: ignore[no-untyped-call]  # torch
    learner.module.zero_grad()
    shared = SharedParameters.join(learner.module, Place(**place))  # type: ignore[arg-type]  # the same
    board = Board(shared, processes)
    weights = [each for each in learner.module.parameters() if each.requires_grad]
    count = plan.count(processes)
    torch.manual_seed(plan.seed + number)  # each leaves out others, where there is dropout
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
    """w ← w - rate · gradient, in place, whoever else writes there."""
    gradients = torch.autograd.grad(loss, weights, allow_unused=True)
    with torch.no_grad():
        for weight, gradient in zip(weights, gradients, strict=True):
            if gradient is not None:
                weight.sub_(gradient, alpha=rate)


class Board:
    """What processes say of themselves behind the shared weights, each in a cache line of its own."""

    def __init__(self, shared: SharedParameters, processes: int) -> None:
        rows = torch.frombuffer(shared.extra, dtype=torch.float64).view(processes + 1, -1)
        self._begin, self._lines = rows[0], rows[1:]

    def await_go(self, number: int) -> None:
        """Say that a process is ready, and wait for all."""
        self._lines[number, 0] = 1
        while not self._begin[0]:
            time.sleep(POLL_SECONDS)

    def ready(self) -> bool:
        """Whether all processes are."""
        return bool(self._lines[:, 0].all())

    def go(self) -> None:
        """Have all begin."""
        self._begin[0] = 1

    def write(self, number: int, samples: int, seconds: float, loss: float) -> None:
        """What a process has done."""
        line = self._lines[number]
        line[2], line[3] = seconds, loss
        line[1] = samples

    def done(self, samples: int) -> bool:
        """Whether every process has done so many."""
        return bool((self._lines[:, 1] >= samples).all())

    def read(self) -> list[Done]:
        """What each has done so far."""
        return [Done(int(samples), seconds, loss) for _, samples, seconds, loss, *_ in self._lines.tolist()]


def board_bytes(processes: int) -> int:
    """Bytes of a board."""
    return ALIGNED_BYTES * (processes + 1)


def wait_for(
    processes: Sequence[Process], is_so: Callable[[], bool], meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Wait until something is so; raises MachineError where a process fails before."""
    while not is_so():
        for process in processes:
            if process.code() not in (None, 0):
                raise MachineError(f"{process.name} {process.why()}; the others were ended")
        meanwhile()
        time.sleep(10 * POLL_SECONDS)


def _await_ends(processes: Sequence[Process]) -> None:
    wait_for(processes, lambda: all(process.code() is not None for process in processes))
    for process in processes:
        if code := process.code():
            raise MachineError(f"{process.name} {exit_text(code)} after its last step")


def learner_of(factory: str, arguments: Mapping[str, object]) -> Learner:
    """The learner that ``"module:function"`` makes."""
    return cast(Learner, import_function(factory)(**arguments))


@lru_cache(maxsize=1)
def _order(seed: int, epoch: int, there: int) -> NDArray[np.int64]:
    return np.random.default_rng((seed, epoch)).permutation(there)


class RecipeLearner:
    """The layers of a recipe over the training samples of its store."""

    def __init__(self, module: nn.Module, samples: IndexedSamples, loss: Loss) -> None:
        self.module, self._samples, self._loss = module.train(), samples, loss

    @property
    def samples(self) -> int:
        """How many samples there are to learn from."""
        return len(self._samples)

    @property
    def is_fed(self) -> bool:
        """Whether data servers make the samples."""
        return isinstance(self._samples, WorkerSamples)

    def expect(self, batches: Sequence[Sequence[int]]) -> None:
        """As `FedWork.expect`; nothing is asked for where samples are at hand."""
        if isinstance(self._samples, WorkerSamples):
            self._samples.expect(batches)

    @property
    def is_starved(self) -> bool:
        """Whether it waits for samples now."""
        return isinstance(self._samples, WorkerSamples) and self._samples.is_starved

    def loss(self, numbers: Sequence[int]) -> Tensor:
        """The mean loss of these samples."""
        batch = self._samples.batch(numbers)
        return self._loss(self.module(batch.inputs), require_targets(batch.targets))


def of_recipe(recipe: str, store: str, rows: str | None = None, pool: str | None = None) -> RecipeLearner:
    """From a recipe's text, its store, and maybe a folder where `patterns.write_rows` has put the samples, so
    that the processes have one copy of them; or the `PoolPlace` of data servers that make them, which the
    token in the environment opens."""
    read, opened = recipes.parse(recipe), Store(store)
    if augmentation_of(read, opened) is not None:
        raise RecipeError(
            "these steps learn from samples as they are; leave data.augment out, or use strategy downpour "
            "with cluster.processes"
        )
    samples: IndexedSamples
    if pool is None:
        samples = StoreSamples(opened, "train", None if rows is None else Path(rows))
    else:
        samples = RemoteSamples(opened, PoolPlace.parsed(pool))
    return RecipeLearner(supervised_network(read, opened.outputs), samples, loss_of(read))
