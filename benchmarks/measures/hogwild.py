"""Lock-free training by processes of a host, beside processes that only compute and PyTorch's own Hogwild.

Knows: what each case does, how accuracy is judged. Does not know: the command, tables, where results go.
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
from cotswold.host import Call, ForkServer, assign_cores, keep_freed_bytes, pin_to
from cotswold.recipe import Recipe, dump
from cotswold.training.async_sgd.shared_memory import Place, SharedParameters
from cotswold.training.data.indexed import StoreSamples, write_rows
from cotswold.training.losses import loss_of
from measures.hogwild_training import (
    Board,
    Done,
    Steps,
    board_bytes,
    learner_of,
    of_recipe,
    train,
    wait_for,
)

FACTORY = "measures.hogwild_training:of_recipe"
SHARED = "one copy, no locks"
COMPUTING = "processes that only compute"
TORCH = "torch.multiprocessing"
EXAMPLES_MOMENTUM = 0.5
"""That of PyTorch's example `mnist_hogwild`."""


class Bench:
    """A recipe's network and store, as the processes of every case open them."""

    def __init__(self, recipe: Recipe, store: Store, rows: Path, steps: Steps, processes: int) -> None:
        write_rows(store, "train", rows)
        self.recipe, self.store, self.steps, self.processes = recipe, store, steps, processes
        self._arguments: Mapping[str, object] = {
            "recipe": dump(recipe),
            "store": str(store.path),
            "rows": str(rows),
        }

    def speeds(self, rounds: int) -> Document:
        """Samples a second of all processes together, case by case, in turns."""
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
            "spread_samples_a_second": {name: Spread.of(each).as_dict() for name, each in found.items()},
            "ratio": beside,
        }

    def accuracies(self, seeds: int) -> Document:
        """Accuracy after equally many samples: one process, which is plain SGD, and several without locks."""
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
        board = Board(shared, self.processes)
        words = {"arguments": self._arguments, "steps": asdict(self.steps), "processes": self.processes}
        with closing(shared), closing(ForkServer(["measures.hogwild_training"])) as server:
            started = [
                server.start(
                    Call(
                        f"process {number}",
                        "measures.hogwild:compute",
                        {**words, "place": asdict(shared.place), "number": number, "core": core},
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
        """As PyTorch's example: spawned processes, `share_memory`, a `DataLoader` and an optimiser each."""
        learner = of_recipe(**self._arguments)  # type: ignore[arg-type]  # they are its own
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
    """Loss and gradient of the same batches, on weights of its own that stay as they are."""
    pin_to([core])
    keep_freed_bytes()
    torch.set_num_threads(1)
    learner = learner_of(FACTORY, arguments)
    plan = Steps(**steps)  # type: ignore[arg-type]  # asdict of such a one
    shared = SharedParameters.join(nn.Identity(), Place(**place))  # type: ignore[arg-type]  # the same
    board = Board(shared, processes)
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
    """What each process of PyTorch's example does."""
    pin_to([core])
    torch.set_num_threads(1)
    torch.manual_seed(steps.seed + number)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=steps.batch, shuffle=True, drop_last=True)
    loss_of_batch = loss_of(recipe)
    optimizer = optim.SGD(module.parameters(), lr=steps.rate, momentum=EXAMPLES_MOMENTUM)
    loss_of_batch(module(inputs[: steps.batch]), targets[: steps.batch]).backward()  # type: ignore[no-untyped-call]  # torch
    wanted, samples, last = steps.count(processes) * steps.batch, 0, 0.0
    ready.wait(600)  # type: ignore[attr-defined]  # a barrier, which has no type of its own
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
    """The part of the samples that are classified rightly."""
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
    """Speeds in turns, and accuracies where they are wanted."""
    with TemporaryDirectory() as rows:
        bench = Bench(recipe, store, Path(rows), steps, processes)
        found: Document = {"processes": processes, **bench.speeds(rounds)}
        if accurate is not None:
            bench.steps = accurate
            found["accuracy"] = bench.accuracies(seeds)
    return found


def _together(done: Sequence[Done]) -> float:
    """Samples a second of all: their sum over the seconds of the slowest."""
    return sum(each.samples for each in done) / max(each.seconds for each in done)
