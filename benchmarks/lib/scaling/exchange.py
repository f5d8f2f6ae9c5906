"""Exchanges of windows compared with raw messages of the same bytes.

Knows: bursts, bytes per second, the bar. Does not know: how messages travel.

Two ranks of one host exchange through shared memory. The same exchanges through Gloo, as between hosts, are
measured too. Raw messages use Gloo.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cotswold.bench.effort import Effort
from cotswold.bench.measure import interleaved, ratios
from cotswold.bench.ranks.pool import RankPool, Stopwatch
from cotswold.bench.ranks.rank import PoolRank
from cotswold.bench.row import COTSWOLD, Comparison, Row, RowKey, timed
from cotswold.geometry import Grid, StackPartition
from cotswold.mesh import Mesh
from cotswold.mesh.stacks.share import RankShare
from lib.scaling.messages import (
    OVERLAP_SUM,
    PIXELS,
    POOLING,
    POOLING_BACK,
    Maps,
    raw,
)
from lib.scaling.shapes import Fields
from lib.scaling.stacks import named

RAW, GLOO = "raw messages", "through Gloo"
BY_GLOO = "ours through Gloo over raw messages"
BAR = 0.8
EXCHANGES = (PIXELS, OVERLAP_SUM, POOLING, POOLING_BACK)
BURST_BYTES = 32 << 20
"""Approximate bytes of a sample, which is a burst of exchanges."""
BURST_MOST = 20
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Windows:
    """The paper's windows on its own map, partitioned over a grid."""

    fields: Fields
    grid: str

    @property
    def cut(self) -> StackPartition:
        """Return the partition of the stack."""
        return StackPartition(self.fields.stack(self.fields.own, self.fields.own), Grid.parse(self.grid))


def hold_exchanges(rank: PoolRank, subject: Windows) -> dict[str, int]:
    """Register bursts of exchanges and of raw messages as actions; return the bytes of a burst."""
    near, images = Mesh.of(subject.grid), subject.fields.images
    far = Mesh(near.device_mesh)
    far.channels, far.streams = {}, {}  # as between hosts: Gloo only
    ours, by_gloo = (Maps(RankShare(mesh, subject.cut), images).by_name() for mesh in (near, far))
    pixels, moved = subject.cut.geometry.input.channels, {}
    for what, (exchange, mover) in ours.items():
        values = images * (pixels if what in (PIXELS, OVERLAP_SUM) else subject.fields.depth)
        once = mover.plan.points * values * _FLOAT_BYTES
        repeats = max(1, min(BURST_MOST, BURST_BYTES // once))
        actions = {COTSWOLD: exchange, GLOO: by_gloo[what][0], RAW: raw(mover, values)}
        rank.actions.update({named(by, what): _burst(action, repeats) for by, action in actions.items()})
        moved[what] = once * repeats
    return moved


def _burst(action: Callable[[], object], repeats: int) -> Callable[[], None]:
    def burst() -> None:
        for _ in range(repeats):
            action()

    return burst


def exchanges(subject: Windows, effort: Effort) -> list[Row]:
    """Return bytes per second, both directions together, of exchanges and of raw messages."""
    fields, clock = subject.fields, Stopwatch()
    with RankPool(subject.cut.grid.size) as pool:
        bytes_of: dict[str, int] = pool.call(hold_exchanges, subject)[0]
        pairs = [(what, by) for what in EXCHANGES for by in (COTSWOLD, GLOO, RAW)]
        actions = {(what, by): pool.action(named(by, what), clock) for what, by in pairs}
        samples = interleaved(actions, effort.rounds, clock)
    found = []
    for what in EXCHANGES:
        taken = {by: samples[what, by] for by in (COTSWOLD, GLOO, RAW)}
        verdicts = [
            Comparison(RAW, ratios(taken[RAW], taken[COTSWOLD]), BAR),
            Comparison(BY_GLOO, ratios(taken[RAW], taken[GLOO])),
        ]
        place = RowKey("exchange", f"{fields.name}, {subject.grid}", what, fields.images)
        found.append(timed(place, bytes_of[what], taken, verdicts, "GB/s"))
    return found
