"""Other training by two processes of a host: DistributedDataParallel, and torch's Hogwild.

Knows: torch.distributed, torch.multiprocessing, pipes, the clock. Does not know: replicas, evaluation.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed, multiprocessing, nn, optim
from torch.nn.parallel import DistributedDataParallel

from cotswold.data import Store
from cotswold.errors import MachineError
from cotswold.host import keep_freed_memory
from cotswold.recipe import parse
from cotswold.testing import CpuQuota
from cotswold.training.async_sgd.replica_task import build_replica_task
from cotswold.training.data.indexed import StoreSamples
from cotswold.training.losses import loss_of
from cotswold.training.strategies.supervised import require_targets

READY_SECONDS = 120.0
DONE_SECONDS = 3600.0
LAST_SECONDS = 5.0


@dataclass(frozen=True)
class Race:
    """Length of a run, and the interval at which parameters are saved."""

    rate: float
    seed: int
    samples: int
    """Samples of all processes together."""
    kept_every: int
    """Samples between saved parameters."""
    batch: int
    processes: int = 2
    share: float = 1.0
    """Share of a core for the second process."""
    momentum: float = 0.0


@dataclass
class Kept:
    """Parameters saved during a run, with seconds since the first step and samples."""

    seconds: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    vectors: list[NDArray[np.float32]] = field(default_factory=list)

    def keep(self, began: float, samples: int, vector: Tensor) -> None:
        """Save one set of parameters."""
        self.seconds.append(time.perf_counter() - began)
        self.samples.append(samples)
        self.vectors.append(vector.numpy().copy())


Learn = Callable[["Rank"], Iterator[int]]
"""Trains, and yields after each step the number of samples learnt by all processes that it knows of."""


@dataclass
class Rank:
    """One process of a method."""

    number: int
    race: Race
    arguments: Mapping[str, str]
    meeting: str
    """Path of a file, not yet existing, for the rendezvous."""
    module: nn.Module

    def __post_init__(self) -> None:
        store = Store(Path(self.arguments["store"]))
        self._samples = StoreSamples(store, "train", Path(self.arguments["rows"]))
        self._loss = loss_of(parse(self.arguments["recipe"]))

    def batches(self) -> Iterator[list[int]]:
        """Yield this process's batches, in a new order each epoch."""
        count, epoch = len(self._samples), 0
        while True:
            chance = torch.Generator().manual_seed(1000 * self.race.seed + epoch)
            own = torch.randperm(count, generator=chance)[self.number :: self.race.processes]
            for start in range(0, len(own) - self.race.batch + 1, self.race.batch):
                yield own[start : start + self.race.batch].tolist()
            epoch += 1

    def loss(self, network: nn.Module, numbers: list[int]) -> Tensor:
        """Return the mean loss of these samples."""
        batch = self._samples.batch(numbers)
        found: Tensor = self._loss(network(batch.inputs), require_targets(batch.targets))
        return found


def data_parallel(rank: Rank) -> Iterator[int]:
    """Train by SGD on gradients that are averaged at every step."""
    race = rank.race
    distributed.init_process_group(
        "gloo", init_method=f"file://{rank.meeting}", rank=rank.number, world_size=race.processes
    )
    network = DistributedDataParallel(rank.module)
    optimizer = optim.SGD(network.parameters(), lr=race.rate, momentum=race.momentum)
    return _steps(rank, network, optimizer, race.processes)


def hogwild(rank: Rank) -> Iterator[int]:
    """Train each process on shared parameters without locks, with its own momentum."""
    race = rank.race
    optimizer = optim.SGD(rank.module.parameters(), lr=race.rate, momentum=race.momentum)
    return _steps(rank, rank.module, optimizer, 1)


def _steps(rank: Rank, network: nn.Module, optimizer: optim.Optimizer, counted: int) -> Iterator[int]:
    samples = 0
    for numbers in rank.batches():
        optimizer.zero_grad()
        rank.loss(network, numbers).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        samples += counted * len(numbers)
        yield samples


RIVALS: Mapping[str, Learn] = {"DistributedDataParallel": data_parallel, "torch Hogwild": hogwild}


def race_of(name: str, race: Race, arguments: Mapping[str, str]) -> Kept:
    """Return the parameters saved by the processes of a method."""
    context = multiprocessing.get_context("spawn")
    learned = context.Value("q", 0)
    module = build_replica_task(**arguments).network
    module.share_memory()
    with TemporaryDirectory() as folder, ExitStack() as stack:
        pipes: list[Connection[object, object]] = []
        for number in range(race.processes):
            ours, theirs = context.Pipe()
            words = (name, number, race, dict(arguments), f"{folder}/meeting", module, learned, theirs)
            process = context.Process(target=_serve, args=words, daemon=True)
            process.start()
            theirs.close()
            stack.callback(_end, process)
            pipes.append(ours)
        pids = [int(str(_heard(pipe, name, READY_SECONDS))) for pipe in pipes]
        with slowed(pids[-1], race.share):
            for pipe in pipes:
                pipe.send(True)
            found, *_ = [_heard(pipe, name, DONE_SECONDS) for pipe in pipes]
        for pipe in pipes:  # a process may exit only when no other waits for it
            pipe.send(True)
    assert isinstance(found, Kept), "rank 0 saves"
    return found


def _heard(pipe: Connection[object, object], name: str, seconds: float) -> object:
    try:
        if pipe.poll(seconds):
            return pipe.recv()
    except EOFError as error:
        raise MachineError(f"a process of {name} exited; its output is above") from error
    raise MachineError(f"a process of {name} was silent for {seconds:g} s; use an idle machine")


def _end(process: BaseProcess) -> None:
    process.join(LAST_SECONDS)
    if process.is_alive():
        process.kill()
        process.join()


@contextmanager
def slowed(pid: int, share: float) -> Iterator[None]:
    """Limit a process to a share of a core; 1 for no limit."""
    if share >= 1:
        yield
        return
    with CpuQuota(share) as quota:
        quota.add(pid)
        yield


def _serve(
    name: str,
    number: int,
    race: Race,
    arguments: Mapping[str, str],
    meeting: str,
    module: nn.Module,
    learned: object,
    pipe: Connection[object, object],
) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(race.seed + number)
    keep_freed_memory()
    counts_all = RIVALS[name] is data_parallel
    module = deepcopy(module) if counts_all else module
    rank = Rank(number, race, arguments, meeting, module.train())
    rank.loss(module, list(range(race.batch))).backward()  # type: ignore[no-untyped-call]  # torch
    module.zero_grad()
    steps, kept = RIVALS[name](rank), Kept()
    pipe.send(os.getpid())
    pipe.recv()
    began, samples, before = time.perf_counter(), 0, 0
    while samples < race.samples:
        own = next(steps)
        if counts_all:
            samples = own
        else:
            with learned.get_lock():  # type: ignore[attr-defined]  # multiprocessing has no types
                learned.value += own - before  # type: ignore[attr-defined]  # the same
                samples, before = learned.value, own  # type: ignore[attr-defined]  # the same
        if number == 0 and samples >= race.kept_every * (len(kept.seconds) + 1):
            kept.keep(began, samples, torch.cat([each.detach().reshape(-1) for each in module.parameters()]))
    pipe.send(kept)
    pipe.recv()
