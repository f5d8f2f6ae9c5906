"""Lock-free training by processes of a host, compared with isolated processes and PyTorch's Hogwild.

Knows: the cases, the evaluation of accuracy. Does not know: the command, tables, where results go.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, multiprocessing, nn, optim
from torch.utils.data import DataLoader, TensorDataset

from cotswold.bench.measure import Document, Spread, rounded, rounded_all
from cotswold.data import Store
from cotswold.host import Call, ForkServer, assign_cores, keep_freed_memory, pin_to
from cotswold.recipe import Recipe, dump
from cotswold.training.async_sgd.shared_memory import SharedMemoryLocation, SharedParameters
from cotswold.training.data.indexed import StoreSamples, write_rows
from cotswold.training.losses import loss_of
from lib.hogwild_training import (
    Done,
    SharedProgress,
    Steps,
    board_bytes,
    learner_of,
    of_recipe,
    train,
    wait_for,
)

FACTORY = "lib.hogwild_training:of_recipe"
SHARED = "one copy, no locks"
COMPUTING = "processes that only compute"
TORCH = "torch.multiprocessing"
EXAMPLES_MOMENTUM = 0.5
"""Momentum of PyTorch's example `mnist_hogwild`."""


class Bench:
    """A recipe's network and store, opened in the same way by the processes of every case."""

    def __init__(self, recipe: Recipe, store: Store, rows: Path, steps: Steps, processes: int) -> None:
        write_rows(store, "train", rows)
        self.recipe, self.store, self.steps, self.processes = recipe, store, steps, processes
        self._arguments: Mapping[str, object] = {
            "recipe": dump(recipe),
            "store": str(store.path),
            "rows": str(rows),
        }

    def speeds(self, rounds: int) -> Document:
        """Return samples per second of all processes together, by case, alternating."""
        cases = {SHARED: self._shared, COMPUTING: self._computing, TORCH: self._torch}
        found: dict[str, list[float]] = {name: [] for name in cases}
        for number in range(rounds):
            names = list(cases)
            for name in names[number % 3 :] + names[: number % 3]:
                found[name].append(cases[name]())
        beside = {
            name: rounded(median(a / b for a, b in zip(found[SHARED], found[name], strict=True)))
            for name in (COMPUTING, TORCH)
        }
        return {
            "samples_a_second": {name: rounded_all(each) for name, each in found.items()},
            "spread_samples_a_second": {
                name: Spread.from_samples(each).as_dict() for name, each in found.items()
            },
            "ratio": beside,
        }

    def accuracies(self, seeds: int) -> Document:
        """Return accuracies after equal numbers of samples: one process (plain SGD), and several without
        locks."""
        rows = []
        for seed in range(seeds):
            steps = replace(self.steps, seed=seed)
            for processes in (1, self.processes):
                module, _ = train(FACTORY, self._arguments, steps, processes)
                judged = {
                    split: rounded(accuracy(module, StoreSamples(self.store, split)))
                    for split in ("validation", "test")
                    if self.store.splits.get(split)
                }
                rows.append({"seed": seed, "processes": processes, **judged})
        return {"samples": self.steps.samples, "rows": rows}

    def _shared(self) -> float:
        return _together(train(FACTORY, self._arguments, self.steps, self.processes)[1])

    def _computing(self) -> float:
        shared = SharedParameters(nn.Identity(), board_bytes(self.processes))
        board = SharedProgress(shared, self.processes)
        words = {"arguments": self._arguments, "steps": asdict(self.steps), "processes": self.processes}
        with closing(shared), closing(ForkServer(["lib.hogwild_training"])) as server:
            started = [
                server.start(
                    Call(
                        f"process {number}",
                        "lib.hogwild:compute",
                        {**words, "place": asdict(shared.location), "number": number, "core": core},
                    )
                )
                for number, core in enumerate(assign_cores(self.processes))
            ]
            wait_for(started, board.ready)
            board.go()
            count = self.steps.count(self.processes) * self.steps.batch
            wait_for(started, lambda: board.done(count))
        return _together(board.read())

    def _torch(self) -> float:
        """Run PyTorch's example: spawned processes, `share_memory`, a `DataLoader` and an optimiser each."""
        learner = of_recipe(**self._arguments)  # type: ignore[arg-type]  # its own arguments
        samples = StoreSamples(self.store, "train")
        batch = samples.batch(range(len(samples)))
        assert batch.targets is not None, "a recipe with labels"
        inputs = batch.inputs.contiguous()
        inputs.share_memory_()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        learner.module.share_memory()
        context = multiprocessing.get_context("spawn")
        ready, told = context.Barrier(self.processes), context.Queue()
        words = (learner.module, inputs, batch.targets, self.recipe, self.steps, self.processes, ready, told)
        started = [
            context.Process(target=as_in_torch, args=(number, core, *words))
            for number, core in enumerate(assign_cores(self.processes))
        ]
        for process in started:
            process.start()
        done = [told.get(timeout=600) for _ in started]
        for process in started:
            process.join()
        return _together(done)


def compute(
    arguments: Mapping[str, object],
    steps: Mapping[str, object],
    processes: int,
    place: Mapping[str, object],
    number: int,
    core: int | None,
) -> None:
    """Compute loss and gradient of the same batches on separate, constant weights."""
    pin_to([core])
    keep_freed_memory()
    torch.set_num_threads(1)
    learner = learner_of(FACTORY, arguments)
    plan = Steps(**steps)  # type: ignore[arg-type]  # from asdict
    shared = SharedParameters.join(nn.Identity(), SharedMemoryLocation(**place))  # type: ignore[arg-type]  # the same
    board = SharedProgress(shared, processes)
    weights = list(learner.module.parameters())
    torch.autograd.grad(learner.loss(plan.numbers(number, learner.samples)), weights)
    board.await_go(number)
    begun = time.perf_counter()
    for step in range(plan.count(processes)):
        loss = learner.loss(plan.numbers(step * processes + number, learner.samples))
        torch.autograd.grad(loss, weights)
        board.write(number, (step + 1) * plan.batch, time.perf_counter() - begun, float(loss.detach()))


def as_in_torch(
    number: int,
    core: int | None,
    module: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    recipe: Recipe,
    steps: Steps,
    processes: int,
    ready: object,
    told: object,
) -> None:
    """Run one process of PyTorch's example."""
    pin_to([core])
    torch.set_num_threads(1)
    torch.manual_seed(steps.seed + number)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=steps.batch, shuffle=True, drop_last=True)
    loss_of_batch = loss_of(recipe)
    optimizer = optim.SGD(module.parameters(), lr=steps.rate, momentum=EXAMPLES_MOMENTUM)
    loss_of_batch(module(inputs[: steps.batch]), targets[: steps.batch]).backward()  # type: ignore[no-untyped-call]  # torch
    wanted, samples, last = steps.count(processes) * steps.batch, 0, 0.0
    ready.wait(600)  # type: ignore[attr-defined]  # a barrier has no type
    begun = time.perf_counter()
    while samples < wanted:
        for data, target in loader:
            optimizer.zero_grad()
            loss = loss_of_batch(module(data), target)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            optimizer.step()
            samples, last = samples + len(data), float(loss.detach())
            if samples >= wanted:
                break
    told.put(Done(samples, time.perf_counter() - begun, last))  # type: ignore[attr-defined]  # a queue


@torch.no_grad()
def accuracy(module: nn.Module, samples: StoreSamples, batch: int = 500) -> float:
    """Return the fraction of samples classified correctly."""
    module.eval()
    right = 0
    for start in range(0, len(samples), batch):
        found = samples.batch(range(start, min(start + batch, len(samples))))
        right += int((module(found.inputs).argmax(1) == found.targets).sum())
    return right / len(samples)


def measured(
    recipe: Recipe,
    store: Store,
    steps: Steps,
    accurate: Steps | None,
    processes: int,
    rounds: int,
    seeds: int,
) -> Document:
    """Measure the speeds, alternating, and the accuracies if requested."""
    with TemporaryDirectory() as rows:
        bench = Bench(recipe, store, Path(rows), steps, processes)
        found: Document = {"processes": processes, **bench.speeds(rounds)}
        if accurate is not None:
            bench.steps = accurate
            found["accuracy"] = bench.accuracies(seeds)
    return found


def _together(done: Sequence[Done]) -> float:
    """Return samples per second of all processes: all samples over the seconds of the slowest."""
    return sum(each.samples for each in done) / max(each.seconds for each in done)
