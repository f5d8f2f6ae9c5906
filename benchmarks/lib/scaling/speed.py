"""Two ranks compared with one process, and a grid of one rank compared with the plain module.

Knows: baselines, efficiencies, bars. Does not know: how a pool works, tables.

One process computes on one thread while the other rank is idle. Two isolated processes are a second baseline:
the loss of two ranks relative to them is due to exchanges; the rest is due to two cores that share caches and
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cotswold.bench.effort import Effort
from cotswold.bench.measure import Spread, interleaved, ratios
from cotswold.bench.ranks.pool import RankPool, Stopwatch
from cotswold.bench.row import COTSWOLD, Comparison, Row, RowKey, Samples
from cotswold.errors import UserError
from cotswold.geometry import Grid, StackGeometry
from lib.scaling.shapes import Fields
from lib.scaling.stacks import FORWARD, LOCAL, STEP, hold_layers, hold_plain, hold_share, named

ONE, TWO_APART, PLAIN = "one process", "two that share nothing", "plain module"
BARS = {"weak": 0.95, "strong": 0.90}
ALONE_BAR = 1.02
RANKS = 2


@dataclass(frozen=True)
class Speed:
    """Two ranks on a grid, for ``weak`` or ``strong`` scaling."""

    kind: str
    fields: Fields
    grid: str

    @property
    def whole(self) -> StackGeometry:
        """Return the stack of the two ranks."""
        return self.fields.times(self._grid, self.fields.weak) if self.kind == "weak" else self.one

    @property
    def one(self) -> StackGeometry:
        """Return the stack of one process."""
        blocks = self.fields.weak if self.kind == "weak" else self.fields.strong
        return self.fields.stack(blocks, blocks)

    @property
    def part(self) -> StackGeometry:
        """Return a stack with as many blocks as a rank has."""
        rows, columns = self.whole.filters.grid
        if rows % self._grid.rows or columns % self._grid.columns:
            raise UserError(f"{rows} x {columns} blocks are not divisible by {self.grid}; choose other sizes")
        return self.fields.stack(rows // self._grid.rows, columns // self._grid.columns)

    @property
    def work(self) -> int:
        """Return the work of one process in multiples of a rank's work at the same progress."""
        return 1 if self.kind == "weak" else RANKS

    @property
    def _grid(self) -> Grid:
        return Grid.parse(self.grid)


def speed(subject: Speed, effort: Effort) -> list[Row]:
    """Measure whole steps and forward passes by two ranks, by one process, and by two isolated processes."""
    fields, clock = subject.fields, Stopwatch()
    with RankPool(RANKS) as pool:
        pool.call(hold_plain, TWO_APART, subject.part, fields.images)
        one = TWO_APART  # on the first rank: avoids a second copy of the same stack
        if subject.one != subject.part:
            one = ONE
            pool.call(hold_plain, ONE, subject.one, fields.images, only=[0])
        pool.call(hold_share, COTSWOLD, subject.grid, subject.whole, fields.images, fields.first)
        actions: dict[tuple[str, str], Callable[[], None]] = {}
        for what in (STEP, FORWARD):
            actions[what, COTSWOLD] = pool.action(named(COTSWOLD, what), clock)
            actions[what, ONE] = pool.action(named(one, what), clock, only=[0], barrier=False)
            actions[what, TWO_APART] = pool.action(named(TWO_APART, what), clock)
        samples = interleaved(actions, effort.rounds, clock)
    found = []
    for what in (STEP, FORWARD):
        taken = {by: samples[what, by] for by in (COTSWOLD, ONE, TWO_APART)}
        once = [seconds / subject.work for seconds in taken[ONE]]
        verdicts = [
            Comparison(ONE, ratios(once, taken[COTSWOLD]), BARS[subject.kind]),
            Comparison(TWO_APART, ratios(taken[TWO_APART], taken[COTSWOLD])),
        ]
        place = RowKey(subject.kind, f"{fields.name}, {subject.grid}", what, fields.images)
        found.append(in_milliseconds(place, taken, verdicts, _sizes(subject)))
    return found


def in_milliseconds(
    place: RowKey, taken: Samples, verdicts: Sequence[Comparison], facts: dict[str, object] | None = None
) -> Row:
    """Return a row of times."""
    figures = {by: Spread.from_samples([1e3 * one for one in seconds]) for by, seconds in taken.items()}
    return Row(place, "ms", figures, taken, "seconds", verdicts, facts=facts or {})


def _sizes(subject: Speed) -> dict[str, object]:
    return {
        "blocks_of_one_process": list(subject.one.filters.grid),
        "blocks_of_all_ranks": list(subject.whole.filters.grid),
    }


@dataclass(frozen=True)
class Alone:
    """A grid of one rank with a number of threads."""

    fields: Fields
    threads: int

    @property
    def place(self) -> str:
        """Return the shape and the number of threads."""
        return f"{self.fields.name}, {self.threads} thread{'s' if self.threads > 1 else ''}"


def alone(subject: Alone, effort: Effort) -> list[Row]:
    """Measure steps and forward passes of a 1x1 grid and of the plain module, on one map."""
    fields, clock = subject.fields, Stopwatch()
    geometry = fields.stack(fields.weak, fields.weak)
    names = [(what, by) for what in (STEP, FORWARD, LOCAL) for by in (COTSWOLD, PLAIN)]
    with RankPool(1, subject.threads) as pool:
        pool.call(hold_plain, PLAIN, geometry, fields.images)
        pool.call(hold_share, COTSWOLD, "1x1", geometry, fields.images, fields.first)
        pool.call(hold_layers, COTSWOLD, PLAIN, geometry, fields.images)
        actions = {(what, by): pool.action(named(by, what), clock) for what, by in names}
        samples = interleaved(actions, effort.rounds, clock)
    found = []
    for what in (STEP, FORWARD, LOCAL):
        taken = {by: samples[what, by] for by in (COTSWOLD, PLAIN)}
        verdict = Comparison(PLAIN, ratios(taken[COTSWOLD], taken[PLAIN]), ALONE_BAR, "at most")
        place = RowKey("alone", subject.place, what, fields.images)
        found.append(in_milliseconds(place, taken, [verdict], {"threads": subject.threads}))
    return found
