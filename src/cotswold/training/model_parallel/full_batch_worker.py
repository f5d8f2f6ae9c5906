"""The model-parallel worker: one worker of a full batch whose network is partitioned over several ranks.

Knows: each rank's part of every parameter, the leader's commands to the followers. Does not know: how ranks
are started (`launch.forked_group`), portions, who calls the leader.

The leader has the whole vector and the layout of a single process, so points, sums and checkpoints equal
those of any other worker. It sends the followers the samples to sum, and the point if that has changed. All
ranks compute together, and the leader assembles the gradient from their parts. Each rank reads the samples
itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from enum import IntEnum
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from cotswold import recipe as recipes
from cotswold.data import Store
from cotswold.errors import MachineError, describe_exception
from cotswold.geometry import Box, Grid
from cotswold.host import Process, Token, inherited, raise_on_all, token_of
from cotswold.launch import LeaderGroup, Membership, follow, lead
from cotswold.launch.watch.failure import is_peer_lost
from cotswold.mesh import own_box
from cotswold.shards.runtime.work import PortionSum, TensorSlot, add_sums
from cotswold.training.full_batch.objective import (
    INHERITED_OBJECTIVE,
    ModuleObjective,
    inherited_objective,
    objective_from_recipe,
)
from cotswold.training.model_parallel.microbatches import ConcurrentMicrobatches, parts_of

TOKEN = "token of the run"
"""The key of the run's token for the ranks, whose environment has another token."""
_IDLE = timedelta(days=7)
"""The timeout of followers that wait for a command."""


class _Verb(IntEnum):
    VALUE = 0
    GRADIENT = 1
    VALIDATE = 2
    END = 3


class Rank:
    """One rank: its part of the parameters, and collective methods that all ranks call in the same order."""

    def __init__(self, whole: ModuleObjective, grid: Grid, ranks: Membership, microbatches: int = 1) -> None:
        """Partition ``whole``, which is the same on every rank, over the grid.

        ``microbatches`` is the number of micro-batches computed concurrently.
        """
        self.objective, self._ranks, self._microbatches = whole, ranks, microbatches
        torch.manual_seed(0)  # all ranks of a partition must draw alike
        self._copies = ConcurrentMicrobatches(whole.network, grid, microbatches)
        self.network = self._copies.networks[0]
        self.wire = dist.new_group(backend="gloo", timeout=_IDLE)
        boxes = [own_box(each) for each in self._copies.parameters]
        self._boxes = [
            [Box(tuple(start), tuple(stop)) for start, stop in of_rank]
            for of_rank in ranks.gather([[each.start, each.stop] for each in boxes])
        ]

    @property
    def number(self) -> int:
        """The rank's number."""
        return self._ranks.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._ranks.size

    @property
    def every_box(self) -> Sequence[Sequence[Box]]:
        """The box of each rank in each parameter."""
        return self._boxes

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of the parameters by name, in their order."""
        return dict(zip(self.objective.flat.names, self.objective.flat.shapes, strict=True))

    @property
    def parts(self) -> list[Tensor]:
        """This rank's parts of the parameters (live tensors)."""
        with torch.no_grad():
            return [each.to_local() for each in self._copies.parameters]

    def add(self, numbers: Sequence[int], learn: bool) -> PortionSum:
        """Return the sum over samples, whole on every rank; if ``learn``, this rank's parts get gradients."""
        with raise_on_all(self._ranks, MachineError):
            batches = [self.objective.read(part) for part in parts_of(numbers, self._microbatches)]
        self._copies.clear()
        return add_sums(
            self._copies.run(batches, lambda batch, network: self.objective.loss_sum(batch, network, learn))
        )

    def expect(self, batches: Sequence[Sequence[int]]) -> None:
        """Prefetch the samples of the next sums, as `FedWork.expect`."""
        if self.objective.is_fed:
            self.objective.expect([part for each in batches for part in parts_of(each, self._microbatches)])

    def gradients(self) -> list[Tensor]:
        """Return this rank's parts of the gradient."""
        return self._copies.gradients()

    def sharded(self, rank: int) -> list[tuple[int, Box]]:
        """Return the sharded parameters, with the box of a rank; of other parameters each rank has all."""
        whole = [Box.whole(shape) for shape in self.objective.flat.shapes]
        return [
            (number, box)
            for number, box in enumerate(self._boxes[rank])
            if box.size and any(of_rank[number] != whole[number] for of_rank in self._boxes)
        ]

    def boxes(self, rank: int) -> Iterator[tuple[Box, tuple[int, ...]]]:
        """Yield the box of a rank in each parameter, with the parameter's shape."""
        return zip(self._boxes[rank], self.objective.flat.shapes, strict=True)


class ModelParallelWorker:
    """The leader's task, with the interface of a worker (`Work`)."""

    def __init__(self, rank: Rank, group: LeaderGroup) -> None:
        self._rank, self._followers = rank, group
        self._flops = rank.objective.flops  # of the whole module, before the followers compute
        self._scattered: Tensor | None = None
        self._answered = 0
        """The number of followers that have answered the last command, in their order."""
        self._is_awaiting = False

    @property
    def is_fed(self) -> bool:
        """True if data servers make the samples."""
        return self._rank.objective.is_fed

    def expect(self, batches: Sequence[Sequence[int]]) -> None:
        """Prefetch the leader's samples, as `FedWork.expect`."""
        self._rank.expect(batches)

    @property
    def is_starved(self) -> bool:
        """True while the leader waits for samples."""
        return self._rank.objective.is_starved

    @property
    def processes(self) -> Sequence[Process]:
        """The processes of the followers."""
        return self._followers.processes

    @property
    def owing(self) -> Sequence[Process]:
        """The processes that have not answered yet; in an exchange they wait for each other."""
        return self._followers.processes[self._answered :]

    @property
    def is_awaiting(self) -> bool:
        """True if the leader has finished its part."""
        return self._is_awaiting

    @property
    def parameters(self) -> Tensor:
        """The trainable parameters, as one whole vector."""
        return self._rank.objective.parameters

    @property
    def layout(self) -> Sequence[TensorSlot]:
        """The parameters' positions in the vector, as in a single process."""
        return self._rank.objective.layout

    @property
    def samples(self) -> int:
        """The number of training samples."""
        return self._rank.objective.samples

    @property
    def flops(self) -> tuple[int, int]:
        """FLOPs per sample of value alone, and of value and gradient, as a single process counts them."""
        return self._flops

    def add(self, samples: Sequence[int], gradient: Tensor | None) -> PortionSum:
        """Return the sum of losses over these samples, and add its gradient to ``gradient``."""
        if not len(samples):
            return PortionSum(0.0, 0, {})
        with self._together():
            self._tell(_Verb.VALUE if gradient is None else _Verb.GRADIENT, samples)
            found: PortionSum | Exception
            try:
                found = self._rank.add(samples, gradient is not None)
            except Exception as error:
                found = error
            failed = self._collect(gradient, isinstance(found, PortionSum))
            if isinstance(found, Exception):
                raise found
            if failed:
                raise MachineError(f"rank {failed[0]} of the worker failed to compute; see its output")
        return found

    @property
    def held_out(self) -> int:
        """The number of validation samples."""
        return self._rank.objective.held_out

    def validate(self, start: int, stop: int) -> PortionSum:
        """Return the sum of losses over these validation samples."""
        with self._together():
            self._tell(_Verb.VALIDATE, (start, stop))
            return self._rank.objective.validation_sum(self._rank.network, start, stop)

    def close(self) -> None:
        """End the followers."""
        self._tell(_Verb.END)

    @contextmanager
    def _together(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._followers.await_rank_death(error)
            raise

    def _tell(self, verb: _Verb, samples: Sequence[int] = ()) -> None:
        """Broadcast a command to the followers, with the point if it has changed."""
        self._answered, self._is_awaiting, point = 0, False, self.parameters
        changed = verb != _Verb.END and (self._scattered is None or not torch.equal(point, self._scattered))
        dist.broadcast(torch.tensor([verb, len(samples), changed]), 0, group=self._rank.wire)
        if len(samples):
            dist.broadcast(torch.tensor(samples, dtype=torch.int64), 0, group=self._rank.wire)
        if not changed:
            return
        views = list(self._rank.objective.flat.by_name(point).values())
        for number in range(1, len(self._followers.processes) + 1):
            parts = [view[box.slices] for view, (box, _) in zip(views, self._rank.boxes(number), strict=True)]
            if any(part.numel() for part in parts):
                dist.send(_flatten_parts(parts, point), number, group=self._rank.wire)
        for part, view, (box, _) in zip(self._rank.parts, views, self._rank.boxes(0), strict=True):
            part.copy_(view[box.slices])
        self._scattered = point.clone()

    def _collect(self, gradient: Tensor | None, adds: bool) -> list[int]:
        """Add all ranks' parts of the gradient; return the ranks that failed."""
        if gradient is not None and adds:
            own = self._rank.gradients()
            for view, (box, _), part in zip(
                self._rank.objective.flat.by_name(gradient).values(), self._rank.boxes(0), own, strict=True
            ):
                view[box.slices] += part
        failed, self._is_awaiting = [], True
        for number in range(1, len(self._followers.processes) + 1):
            status = torch.zeros(1, dtype=torch.int64)
            dist.recv(status, number, group=self._rank.wire)
            self._answered = number
            if not status.item():
                failed.append(number)
            elif gradient is not None:
                self._add_part(gradient, number, adds)
        return failed

    def _add_part(self, gradient: Tensor, number: int, adds: bool) -> None:
        sharded = self._rank.sharded(number)
        views = list(self._rank.objective.flat.by_name(gradient).values())
        row = gradient.new_empty(sum(box.size for _, box in sharded))
        if len(row):
            dist.recv(row, number, group=self._rank.wire)
        start = 0
        for index, box in sharded:
            if adds:
                views[index][box.slices] += row[start : start + box.size].view(box.shape)
            start += box.size


def follower_loop(rank: Rank) -> None:
    """Main loop of a follower: execute the leader's commands until END."""
    wire, point = rank.wire, rank.objective.parameters
    number = dist.get_rank()
    while True:
        words = torch.zeros(3, dtype=torch.int64)
        dist.broadcast(words, 0, group=wire)
        verb, count, changed = _Verb(int(words[0])), int(words[1]), bool(words[2])
        if verb == _Verb.END:
            return
        samples = torch.zeros(count, dtype=torch.int64)
        if count:
            dist.broadcast(samples, 0, group=wire)
        if changed:
            _receive_point(rank)
        try:
            if verb == _Verb.VALIDATE:
                rank.objective.validation_sum(rank.network, *samples.tolist())
                continue
            rank.add(samples.tolist(), verb == _Verb.GRADIENT)
        except Exception as error:
            if is_peer_lost(error):
                raise
            print(
                f"rank {number}: {describe_exception(error)}", flush=True
            )  # the leader raises it to its caller
            if verb != _Verb.VALIDATE:
                dist.send(torch.zeros(1, dtype=torch.int64), 0, group=wire)
            continue
        dist.send(torch.ones(1, dtype=torch.int64), 0, group=wire)
        if verb == _Verb.GRADIENT:
            gradients = rank.gradients()
            row = _flatten_parts([gradients[index] for index, _ in rank.sharded(number)], point)
            if len(row):
                dist.send(row, 0, group=wire)


def _receive_point(rank: Rank) -> None:
    parts = rank.parts
    row = rank.objective.parameters.new_empty(sum(part.numel() for part in parts))
    if len(row):
        dist.recv(row, 0, group=rank.wire)
    start = 0
    for part in parts:
        part.copy_(row[start : start + part.numel()].view(part.shape))
        start += part.numel()


def _flatten_parts(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts]) if parts else like.new_empty(0)


@contextmanager
def build_model_parallel_worker(
    recipe: str, store: str, rows: str | None = None, pool: str | None = None
) -> Iterator[ModelParallelWorker]:
    """Run a recipe's worker on the ranks of its `[mesh]`, in the leader."""
    given = {"recipe": recipe, "store": store, "rows": rows, "pool": pool}
    token = {TOKEN: token_of(os.environ)}
    mesh = recipes.parse(recipe).mesh
    assert mesh.grid is not None, "model-parallel workers have a grid"
    size, function = Grid.parse(mesh.grid).size, f"{__name__}:follow_recipe"
    with lead(function, given, size, given=token, timeout_seconds=mesh.timeout) as led:
        yield from _led(
            lambda: _build_recipe_objective(recipe, store, rows, pool), mesh.grid, led, mesh.microbatches
        )


def follow_recipe(
    recipe: str, store: str, rows: str | None, pool: str | None, place: Mapping[str, object]
) -> None:
    """Run a follower of `build_model_parallel_worker`."""
    mesh = recipes.parse(recipe).mesh
    assert mesh.grid is not None, "model-parallel workers have a grid"
    token = cast(Token | None, inherited(TOKEN))  # as the leader gave it
    with follow(place) as ranks:
        work = _build_recipe_objective(recipe, store, rows, pool, token)
        follower_loop(Rank(work, Grid.parse(mesh.grid), ranks, mesh.microbatches))


@contextmanager
def inherited_worker(
    grid: str, timeout_seconds: float, microbatches: int = 1
) -> Iterator[ModelParallelWorker]:
    """Run the program's worker on the ranks of a grid, in the leader."""
    work, given = inherited_objective(), {"grid": grid, "microbatches": microbatches}
    size = Grid.parse(grid).size
    function = f"{__name__}:follow_inherited"
    inherit = {INHERITED_OBJECTIVE: work}
    with lead(function, given, size, given=inherit, timeout_seconds=timeout_seconds) as led:
        yield from _led(lambda: work, grid, led, microbatches)


def follow_inherited(grid: str, microbatches: int, place: Mapping[str, object]) -> None:
    """Run a follower of `inherited_worker`."""
    with follow(place) as ranks:
        follower_loop(Rank(inherited_objective(), Grid.parse(grid), ranks, microbatches))


def _led(
    make: Callable[[], ModuleObjective], grid: str, led: LeaderGroup, microbatches: int
) -> Iterator[ModelParallelWorker]:
    work = ModelParallelWorker(Rank(make(), Grid.parse(grid), led.ranks, microbatches), led)
    yield work
    work.close()


def _build_recipe_objective(
    recipe: str, store: str, rows: str | None, pool: str | None, token: Token | None = None
) -> ModuleObjective:
    torch.set_num_threads(1)
    folder = None if rows is None else Path(rows)
    return objective_from_recipe(recipes.parse(recipe), Store(store), folder, pool, token)
