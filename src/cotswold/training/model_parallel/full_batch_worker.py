"""The work of a gang: one worker whose network is cut over several ranks.

Knows: which part of every parameter a rank has, what the leader tells the others. Does not know: how ranks
are started (`launch.gang`), portions, who asks the leader.

The leader has the whole vector, and the layout of one process, so that points, sums and checkpoints are those
of any other worker. It tells the others what is to be summed, and the point where that has changed; all
compute together, and the leader puts the gradient together from their parts. Each rank reads the patterns by
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
from cotswold.errors import MachineError, told
from cotswold.geometry import Box, Grid
from cotswold.host import Process, Token, inherited, raise_on_all, token_of
from cotswold.launch import LeaderGroup, Membership, follow, lead
from cotswold.launch.watch.failure import is_peer_lost
from cotswold.mesh import own_box
from cotswold.shards.runtime.work import PortionSum, Slot
from cotswold.training.full_batch.objective import INHERITED, ModuleWork, inherited_work, of_recipe
from cotswold.training.model_parallel.microbatches import InFlight, parts_of

TOKEN = "token of the run"
"""The name under which the ranks of a gang find it: they have one of their own in the environment."""
_IDLE = timedelta(days=7)
"""So long the ranks wait for their leader to have something to do."""


class _Verb(IntEnum):
    VALUE = 0
    GRADIENT = 1
    VALIDATE = 2
    END = 3


class Rank:
    """One rank: its part of the parameters, and what all ranks do together, called by all in one order."""

    def __init__(self, whole: ModuleWork, grid: Grid, ranks: Membership, in_flight: int = 1) -> None:
        """``whole``: the same on every rank; it is computed by none of them. ``in_flight``: how many
        micro-batches are computed at once."""
        self.whole, self._ranks, self._in_flight = whole, ranks, in_flight
        torch.manual_seed(0)  # a partition asks that ranks draw alike
        self._copies = InFlight(whole.network, grid, in_flight)
        self.network = self._copies.networks[0]
        self.wire = dist.new_group(backend="gloo", timeout=_IDLE)
        boxes = [own_box(each) for each in self._copies.parameters]
        self._boxes = [
            [Box(tuple(start), tuple(stop)) for start, stop in of_rank]
            for of_rank in ranks.gather([[each.start, each.stop] for each in boxes])
        ]

    @property
    def number(self) -> int:
        """Which it is."""
        return self._ranks.rank

    @property
    def size(self) -> int:
        """How many there are."""
        return self._ranks.size

    @property
    def every_box(self) -> Sequence[Sequence[Box]]:
        """Where the part of each rank lies in each parameter."""
        return self._boxes

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Those of the parameters, in their order."""
        return dict(zip(self.whole.flat.names, self.whole.flat.shapes, strict=True))

    @property
    def parts(self) -> list[Tensor]:
        """What this rank has of the parameters, live."""
        with torch.no_grad():
            return [each.to_local() for each in self._copies.parameters]

    def add(self, numbers: Sequence[int], learn: bool) -> PortionSum:
        """The sum over patterns, whole on every rank; with ``learn`` this rank's parts have gradients."""
        with raise_on_all(self._ranks, MachineError):
            batches = [self.whole.read(part) for part in parts_of(numbers, self._in_flight)]
        self._copies.clear()
        return _added(
            self._copies.run(batches, lambda batch, network: self.whole.summed(batch, network, learn))
        )

    def expect(self, batches: Sequence[Sequence[int]]) -> None:
        """Hear what is added up next, as `FedWork.expect`."""
        if self.whole.is_fed:
            self.whole.expect([part for each in batches for part in parts_of(each, self._in_flight)])

    def gradients(self) -> list[Tensor]:
        """What this rank has of the gradient, part by part."""
        return self._copies.gradients()

    def sharded(self, rank: int) -> list[tuple[int, Box]]:
        """The parameters of which ranks have parts, with that of a rank: of others each has all."""
        whole = [Box.whole(shape) for shape in self.whole.flat.shapes]
        return [
            (number, box)
            for number, box in enumerate(self._boxes[rank])
            if box.size and any(of_rank[number] != whole[number] for of_rank in self._boxes)
        ]

    def boxes(self, rank: int) -> Iterator[tuple[Box, tuple[int, ...]]]:
        """Where the parts of a rank lie, and the shapes of the parameters."""
        return zip(self._boxes[rank], self.whole.flat.shapes, strict=True)


class GangWork:
    """The leader's work, which is a worker's: `Work`."""

    def __init__(self, rank: Rank, led: LeaderGroup) -> None:
        self._rank, self._led = rank, led
        self._flops = rank.whole.flops  # of the whole module, before anybody else computes
        self._scattered: Tensor | None = None
        self._answered = 0
        """Other ranks that have said what came of what they were told last, in their order."""
        self._is_awaiting = False

    @property
    def is_fed(self) -> bool:
        """Whether data servers make the patterns."""
        return self._rank.whole.is_fed

    def expect(self, batches: Sequence[Sequence[int]]) -> None:
        """As `FedWork.expect`, of the leader alone."""
        self._rank.expect(batches)

    @property
    def is_starved(self) -> bool:
        """Whether the leader waits for patterns now."""
        return self._rank.whole.is_starved

    @property
    def processes(self) -> Sequence[Process]:
        """Those of the other ranks."""
        return self._led.processes

    @property
    def owing(self) -> Sequence[Process]:
        """Those that have not answered yet; in an exchange they wait for each other."""
        return self._led.processes[self._answered :]

    @property
    def is_awaiting(self) -> bool:
        """Whether rank 0 has done its part."""
        return self._is_awaiting

    @property
    def parameters(self) -> Tensor:
        """The parameters that learn, one vector, whole."""
        return self._rank.whole.parameters

    @property
    def layout(self) -> Sequence[Slot]:
        """The parameters in the vector, as one process has them."""
        return self._rank.whole.layout

    @property
    def patterns(self) -> int:
        """How many patterns there are to learn from."""
        return self._rank.whole.patterns

    @property
    def flops(self) -> tuple[int, int]:
        """Of one pattern, as one process counts them."""
        return self._flops

    def add(self, patterns: Sequence[int], gradient: Tensor | None) -> PortionSum:
        """The sum of losses over these patterns; adds their gradient."""
        if not len(patterns):
            return PortionSum(0.0, 0, {})
        with self._together():
            self._tell(_Verb.VALUE if gradient is None else _Verb.GRADIENT, patterns)
            found: PortionSum | Exception
            try:
                found = self._rank.add(patterns, gradient is not None)
            except Exception as error:
                found = error
            failed = self._collect(gradient, isinstance(found, PortionSum))
            if isinstance(found, Exception):
                raise found
            if failed:
                raise MachineError(f"rank {failed[0]} of the gang could not compute it; see what it prints")
        return found

    @property
    def held(self) -> int:
        """How many patterns there are for validation."""
        return self._rank.whole.held

    def judge(self, start: int, stop: int) -> PortionSum:
        """The sum of losses over these patterns for validation."""
        with self._together():
            self._tell(_Verb.VALIDATE, (start, stop))
            return self._rank.whole.judged(self._rank.network, start, stop)

    def close(self) -> None:
        """Let the other ranks go."""
        self._tell(_Verb.END)

    @contextmanager
    def _together(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._led.await_rank_death(error)
            raise

    def _tell(self, verb: _Verb, patterns: Sequence[int] = ()) -> None:
        """Have the others do the same; they get the point if it is another than before."""
        self._answered, self._is_awaiting, point = 0, False, self.parameters
        changed = verb != _Verb.END and (self._scattered is None or not torch.equal(point, self._scattered))
        dist.broadcast(torch.tensor([verb, len(patterns), changed]), 0, group=self._rank.wire)
        if len(patterns):
            dist.broadcast(torch.tensor(patterns, dtype=torch.int64), 0, group=self._rank.wire)
        if not changed:
            return
        views = list(self._rank.whole.flat.named(point).values())
        for number in range(1, len(self._led.processes) + 1):
            parts = [view[box.slices] for view, (box, _) in zip(views, self._rank.boxes(number), strict=True)]
            if any(part.numel() for part in parts):
                dist.send(_in_a_row(parts, point), number, group=self._rank.wire)
        for part, view, (box, _) in zip(self._rank.parts, views, self._rank.boxes(0), strict=True):
            part.copy_(view[box.slices])
        self._scattered = point.clone()

    def _collect(self, gradient: Tensor | None, adds: bool) -> list[int]:
        """Add the parts of the gradient that all ranks have; returns the ranks that have failed."""
        if gradient is not None and adds:
            own = self._rank.gradients()
            for view, (box, _), part in zip(
                self._rank.whole.flat.named(gradient).values(), self._rank.boxes(0), own, strict=True
            ):
                view[box.slices] += part
        failed, self._is_awaiting = [], True
        for number in range(1, len(self._led.processes) + 1):
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
        views = list(self._rank.whole.flat.named(gradient).values())
        row = gradient.new_empty(sum(box.size for _, box in sharded))
        if len(row):
            dist.recv(row, number, group=self._rank.wire)
        start = 0
        for index, box in sharded:
            if adds:
                views[index][box.slices] += row[start : start + box.size].view(box.shape)
            start += box.size


def obey(rank: Rank) -> None:
    """What a rank does that is not the leader: as it is told, until it is let go."""
    wire, point = rank.wire, rank.whole.parameters
    number = dist.get_rank()
    while True:
        words = torch.zeros(3, dtype=torch.int64)
        dist.broadcast(words, 0, group=wire)
        verb, count, changed = _Verb(int(words[0])), int(words[1]), bool(words[2])
        if verb == _Verb.END:
            return
        patterns = torch.zeros(count, dtype=torch.int64)
        if count:
            dist.broadcast(patterns, 0, group=wire)
        if changed:
            _receive_point(rank)
        try:
            if verb == _Verb.VALIDATE:
                rank.whole.judged(rank.network, *patterns.tolist())
                continue
            rank.add(patterns.tolist(), verb == _Verb.GRADIENT)
        except Exception as error:
            if is_peer_lost(error):
                raise
            print(f"rank {number}: {told(error)}", flush=True)  # the leader says it to whoever asked
            if verb != _Verb.VALIDATE:
                dist.send(torch.zeros(1, dtype=torch.int64), 0, group=wire)
            continue
        dist.send(torch.ones(1, dtype=torch.int64), 0, group=wire)
        if verb == _Verb.GRADIENT:
            gradients = rank.gradients()
            row = _in_a_row([gradients[index] for index, _ in rank.sharded(number)], point)
            if len(row):
                dist.send(row, 0, group=wire)


def _receive_point(rank: Rank) -> None:
    parts = rank.parts
    row = rank.whole.parameters.new_empty(sum(part.numel() for part in parts))
    if len(row):
        dist.recv(row, 0, group=rank.wire)
    start = 0
    for part in parts:
        part.copy_(row[start : start + part.numel()].view(part.shape))
        start += part.numel()


def _added(sums: Sequence[PortionSum]) -> PortionSum:
    if len(sums) == 1:
        return sums[0]
    names = dict.fromkeys(name for each in sums for name in each.details)
    details = {name: sum(each.details.get(name, 0.0) for each in sums) for name in names}
    return PortionSum(sum(each.value for each in sums), sum(each.samples for each in sums), details)


def _in_a_row(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts]) if parts else like.new_empty(0)


@contextmanager
def in_gang(recipe: str, store: str, rows: str | None = None, pool: str | None = None) -> Iterator[GangWork]:
    """As `works.in_worker`, for a process that leads the ranks of the recipe's `[mesh]`."""
    given = {"recipe": recipe, "store": store, "rows": rows, "pool": pool}
    token = {TOKEN: token_of(os.environ)}
    mesh = recipes.parse(recipe).mesh
    assert mesh.grid is not None, "a gang has a grid"
    with lead(
        f"{__name__}:follow_recipe",
        given,
        Grid.parse(mesh.grid).size,
        given=token,
        timeout_seconds=mesh.timeout,
    ) as led:
        yield from _led(lambda: _of_recipe(recipe, store, rows, pool), mesh.grid, led, mesh.in_flight)


def follow_recipe(
    recipe: str, store: str, rows: str | None, pool: str | None, place: Mapping[str, object]
) -> None:
    """The life of another rank than the leader of `in_gang`."""
    mesh = recipes.parse(recipe).mesh
    assert mesh.grid is not None, "a gang has a grid"
    token = cast(Token | None, inherited(TOKEN))  # as given
    with follow(place) as ranks:
        work = _of_recipe(recipe, store, rows, pool, token)
        obey(Rank(work, Grid.parse(mesh.grid), ranks, mesh.in_flight))


@contextmanager
def inherited_gang(grid: str, timeout_seconds: float, in_flight: int = 1) -> Iterator[GangWork]:
    """As `works.inherited_work`, for a process that leads the ranks of a grid."""
    work, given = inherited_work(), {"grid": grid, "in_flight": in_flight}
    size = Grid.parse(grid).size
    function = f"{__name__}:follow_inherited"
    with lead(function, given, size, given={INHERITED: work}, timeout_seconds=timeout_seconds) as led:
        yield from _led(lambda: work, grid, led, in_flight)


def follow_inherited(grid: str, in_flight: int, place: Mapping[str, object]) -> None:
    """The life of another rank than the leader of `inherited_gang`."""
    with follow(place) as ranks:
        obey(Rank(inherited_work(), Grid.parse(grid), ranks, in_flight))


def _led(make: Callable[[], ModuleWork], grid: str, led: LeaderGroup, in_flight: int) -> Iterator[GangWork]:
    work = GangWork(Rank(make(), Grid.parse(grid), led.ranks, in_flight), led)
    yield work
    work.close()


def _of_recipe(
    recipe: str, store: str, rows: str | None, pool: str | None, token: Token | None = None
) -> ModuleWork:
    torch.set_num_threads(1)
    folder = None if rows is None else Path(rows)
    return of_recipe(recipes.parse(recipe), Store(store), folder, pool, token)
