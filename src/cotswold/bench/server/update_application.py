"""Application of queued pushes to a shard, compared with the memory limit.

Knows: the number of transfers of each rule, shards larger than every cache, the bar. Does not know: the
implementation of updates, processes.

The first bar refers to ``y += x``, of which two of three transfers are reads. A long queue consists almost
only of reads, and a core may read at a lower rate than it reads and writes together. On such a machine no
program meets that bar for long queues. So a second bar refers to the memory limit for exactly these
transfers: the slower of all transfers at the rate of ``y += x``, and the reads at the rate of ``x · y``.

All memory is NumPy's, in large blocks: in huge pages if the system provides them, for both sides. Each push
starts 16 bytes further in a page than the previous one, like blocks of the C library. Small shards are many,
and one call updates them all, as when a server drains its queue: caches are cold. Rows with a call per shard
show the cost of calls, and have no bar. Transfers are the minimum: weights and state are read and written
once, every push is read once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from cotswold.bench.effort import Effort
from cotswold.bench.kernels.baselines import Action
from cotswold.bench.kernels.ceilings import ADDED
from cotswold.bench.measure import interleaved
from cotswold.bench.row import COTSWOLD, Ceiling, Row, RowKey, timed
from cotswold.optim.server_rules import Rule
from cotswold.shards.core.admission import ReceivedFactors, ShardUpdates
from cotswold.shards.runtime.arithmetic import Array, NumpyArithmetic

BAR = 0.8
QUEUES = (1, 4, 16)
"""Numbers of queued pushes."""
COLUMNS = 1024
READ = "x · y"
MEMORY = "memory"
"""The memory limit for the transfers of an operation."""
BLOCK_HEAD_BYTES = 16
"""Bytes between blocks of the C library."""


@dataclass(frozen=True)
class UpdateCase:
    """A rule, and shards of ``shard`` numbers each, ``numbers`` in total."""

    rule: Rule
    shard: int
    numbers: int
    unit_norm: bool = False
    dtype: str = "float32"
    is_one_call_per_shard: bool = False
    """One call per shard."""

    @property
    def name(self) -> str:
        """The name in tables."""
        rows = ", rows of norm 1" if self.unit_norm else ""
        dtype = "" if self.dtype == "float32" else f" {self.dtype}"
        size, unit = self.shard * self.item_bytes >> 10, "KB"
        if size >= 1 << 10:
            size, unit = size >> 10, "MB"
        calls = ", a call each" if self.is_one_call_per_shard else ""
        return f"{self.rule.name}{dtype}{rows}, shards of {size} {unit}{calls}"

    @property
    def item_bytes(self) -> int:
        """Bytes of a number."""
        return np.dtype(self.dtype).itemsize

    def reads(self, pushes: int) -> int:
        """Reads of each number from memory."""
        return 1 + len(self.rule.state_names) + pushes

    def transfers(self, pushes: int) -> int:
        """Transfers of each number to or from memory."""
        return 2 * (1 + len(self.rule.state_names)) + pushes

    @property
    def count(self) -> int:
        """Number of shards."""
        return max(1, self.numbers // self.shard)

    def action(self, pushes: int, pool: Array) -> Action:
        """Update all shards once, each with its next pushes of the pool."""
        arithmetic = NumpyArithmetic(self.dtype)
        weights = np.ones((self.count, self.shard), self.dtype)
        kept = np.ones((self.count, len(self.rule.state_names), self.shard), self.dtype)
        queues: list[list[tuple[float, Array | ReceivedFactors[Array]]]] = [
            [(1e-3, pool[(number * pushes + each) % len(pool)]) for each in range(pushes)]
            for number in range(self.count)
        ]

        passes = [
            ShardUpdates(one, list(beside), queue, COLUMNS, self.unit_norm)
            for one, beside, queue in zip(weights, kept, queues, strict=True)
        ]
        calls = [[one] for one in passes] if self.is_one_call_per_shard else [passes]

        def act() -> None:
            for some in calls:
                arithmetic.apply(self.rule, some)

        return act


def measured(what: UpdateCase, effort: Effort) -> list[Row]:
    """Every queue length compared with ``y += x``."""
    elements = what.count * what.shard
    head = BLOCK_HEAD_BYTES // what.item_bytes
    blocks = np.ones((max(*QUEUES, 2 * what.count), what.shard + head), what.dtype)
    pool = blocks[:, head:]
    actions: dict[int | str, Action] = {pushes: what.action(pushes, pool) for pushes in QUEUES}
    actions |= _limits(elements, what.dtype)
    samples = interleaved(actions, effort.rounds)
    rows = []
    for pushes in QUEUES:
        transfers, of_one = what.transfers(pushes), what.item_bytes * elements
        work, taken = transfers * of_one, samples[pushes]
        operation = f"{pushes} {'push' if pushes == 1 else 'pushes'}, {transfers} transfers"
        added = [one * transfers / 3 for one in samples[ADDED]]
        read = [one * what.reads(pushes) / 2 for one in samples[READ]]
        limits = {ADDED: added, MEMORY: [max(pair) for pair in zip(added, read, strict=True)]}
        bar = None if what.is_one_call_per_shard else BAR
        verdicts = [Ceiling(by, work, seconds).compare(work, taken, bar) for by, seconds in limits.items()]
        place = RowKey("apply", what.name, operation)
        rows.append(timed(place, work, {COTSWOLD: taken, **limits}, verdicts, "GB/s"))
    return rows


def _limits(elements: int, dtype: str) -> dict[int | str, Action]:
    """``y += x``, two passes to read and one to write; and ``x · y``, two to read."""
    x, y = (torch.from_numpy(np.ones(elements, dtype)) for _ in range(2))
    return {ADDED: lambda: y.add_(x), READ: lambda: torch.dot(x, y)}
