"""Exchanges of windows beside raw messages of the same bytes.

Knows: bursts, bytes a second, the bar. Does not know: how messages travel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cotswold.bench.crew import Crew, Stopwatch
from cotswold.bench.effort import Effort
from cotswold.bench.measure import interleaved, ratios
from cotswold.bench.rank import Rank
from cotswold.bench.row import OURS, Place, Row, Verdict, timed
from cotswold.bench.scaling_messages import (
    OVERLAP_SUM,
    PIXELS,
    POOLING,
    POOLING_BACK,
    Maps,
    raw,
)
from cotswold.bench.scaling_shapes import Fields
from cotswold.bench.scaling_stacks import named
from cotswold.geometry import Grid, StackPartition
from cotswold.mesh import Mesh
from cotswold.mesh.share import Share

RAW = "raw messages"
BAR = 0.8
EXCHANGES = (PIXELS, OVERLAP_SUM, POOLING, POOLING_BACK)
BURST_BYTES = 32 << 20
"""A sample is so many exchanges that they move about this much."""
BURST_MOST = 20
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Windows:
    """The paper's windows on its own map, cut over a grid."""

    fields: Fields
    grid: str

    @property
    def cut(self) -> StackPartition:
        """Who has what."""
        return StackPartition(self.fields.stack(self.fields.own, self.fields.own), Grid.parse(self.grid))


def hold_exchanges(rank: Rank, subject: Windows) -> dict[str, int]:
    """Bursts of exchanges and of raw messages become actions; gives the bytes of a burst, both ways."""
    share, images = Share(Mesh.of(subject.grid), subject.cut), subject.fields.images
    pixels, moved = subject.cut.geometry.input.channels, {}
    for what, (exchange, mover) in Maps(share, images).by_name().items():
        values = images * (pixels if what in (PIXELS, OVERLAP_SUM) else subject.fields.depth)
        once = mover.plan.points * values * _FLOAT_BYTES
        repeats = max(1, min(BURST_MOST, BURST_BYTES // once))
        rank.actions[named(OURS, what)] = _burst(exchange, repeats)
        rank.actions[named(RAW, what)] = _burst(raw(mover, values), repeats)
        moved[what] = once * repeats
    return moved


def _burst(action: Callable[[], object], repeats: int) -> Callable[[], None]:
    def burst() -> None:
        for _ in range(repeats):
            action()

    return burst


def exchanges(subject: Windows, effort: Effort) -> list[Row]:
    """Bytes a second, both directions together, by exchange and by raw messages."""
    fields, clock = subject.fields, Stopwatch()
    with Crew(subject.cut.grid.size) as crew:
        bytes_of: dict[str, int] = crew.call(hold_exchanges, subject)[0]
        pairs = [(what, by) for what in EXCHANGES for by in (OURS, RAW)]
        actions = {(what, by): crew.action(named(by, what), clock) for what, by in pairs}
        samples = interleaved(actions, effort.rounds, clock)
    found = []
    for what in EXCHANGES:
        taken = {by: samples[what, by] for by in (OURS, RAW)}
        verdict = Verdict(RAW, ratios(taken[RAW], taken[OURS]), BAR)
        place = Place("exchange", f"{fields.name}, {subject.grid}", what, fields.images)
        found.append(timed(place, bytes_of[what], taken, [verdict], "GB/s"))
    return found
