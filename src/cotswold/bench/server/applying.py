"""Applying queued pushes to a shard, beside the memory limit.

Knows: how many transfers each rule takes, shards that no cache holds, the bar. Does not know: how updates are
done, processes.

The bar is beside ``y += x``, of which a third is written. A long queue is nearly all read, and a core may
read less than it reads and writes together; so ``x · y``, which only reads, stands beside it too, without a
bar.

All memory is NumPy's, in large blocks: in huge pages where the system gives them, for both sides. Shards of 1
MB are many, and are updated in turn, so that each comes from memory as on a server that holds a model.
Transfers are the least: weights and what is kept are read and written once, every push is read once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from cotswold.bench.effort import Effort
from cotswold.bench.kernels.baselines import Action
from cotswold.bench.kernels.ceilings import ADDED
from cotswold.bench.measure import interleaved
from cotswold.bench.row import OURS, Ceiling, Row, RowKey, timed
from cotswold.cluster.arithmetic import Array, NumpyArithmetic
from cotswold.optim.updates import Rule

BAR = 0.8
FLOAT_BYTES = 4
QUEUES = (1, 4, 16)
"""Pushes that wait."""
COLUMNS = 1024
READ = "x · y"


@dataclass(frozen=True)
class Applying:
    """A rule, and shards of so many float32 numbers that together have ``numbers``."""

    rule: Rule
    shard: int
    numbers: int
    unit_norm: bool = False

    @property
    def name(self) -> str:
        """As tables have it."""
        rows = ", rows of norm 1" if self.unit_norm else ""
        return f"{self.rule.name}{rows}, shards of {self.shard * FLOAT_BYTES / (1 << 20):g} MB"

    def transfers(self, pushes: int) -> int:
        """Times that a number goes through memory."""
        return 2 * (1 + len(self.rule.keeps)) + pushes

    @property
    def count(self) -> int:
        """Shards."""
        return max(1, self.numbers // self.shard)

    def action(self, pushes: int, pool: Array) -> Action:
        """Update all shards once, each by its next pushes of the pool."""
        arithmetic = NumpyArithmetic("float32")
        weights = np.ones((self.count, self.shard), np.float32)
        kept = np.ones((self.count, len(self.rule.keeps), self.shard), np.float32)
        queues = [
            [(1e-3, pool[(number * pushes + each) % len(pool)]) for each in range(pushes)]
            for number in range(self.count)
        ]

        def act() -> None:
            for one, beside, queue in zip(weights, kept, queues, strict=True):
                arithmetic.apply(self.rule, one, list(beside), queue, COLUMNS, self.unit_norm)

        return act


def measured(what: Applying, effort: Effort) -> list[Row]:
    """Every length of queue beside ``y += x``."""
    elements = what.count * what.shard
    pool = np.ones((max(*QUEUES, 2 * what.count), what.shard), np.float32)
    actions: dict[int | str, Action] = {pushes: what.action(pushes, pool) for pushes in QUEUES}
    actions |= _limits(elements)
    samples = interleaved(actions, effort.rounds)
    limits = (
        (Ceiling(ADDED, 3 * FLOAT_BYTES * elements, samples[ADDED]), BAR),
        (Ceiling(READ, 2 * FLOAT_BYTES * elements, samples[READ]), None),
    )
    rows = []
    for pushes in QUEUES:
        transfers = what.transfers(pushes)
        work, taken = transfers * FLOAT_BYTES * elements, samples[pushes]
        operation = f"{pushes} {'push' if pushes == 1 else 'pushes'}, {transfers} transfers"
        place = RowKey("apply", what.name, operation)
        by = {OURS: taken} | {
            limit.name: [one * work / limit.work for one in limit.seconds] for limit, _ in limits
        }
        verdicts = [limit.reached(work, taken, bar) for limit, bar in limits]
        rows.append(timed(place, work, by, verdicts, "GB/s"))
    return rows


def _limits(elements: int) -> dict[int | str, Action]:
    """``y += x``, two passes to read and one to write; and ``x · y``, two to read."""
    x, y = (torch.from_numpy(np.ones(elements, np.float32)) for _ in range(2))
    return {ADDED: lambda: y.add_(x), READ: lambda: torch.dot(x, y)}
