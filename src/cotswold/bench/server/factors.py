"""Application of gradients given as factors, errorsᵀ · activations, compared with the lesser of products and
memory.

Knows: FLOPs and the least bytes of such an update, the bar. Does not know: the implementation, processes.

Blocks of weights are many, and are updated in turn: caches are cold. The least bytes: weights and state are
read and written once, factors are read once.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import numpy as np

from cotswold.bench.effort import Effort
from cotswold.bench.kernels.baselines import Action
from cotswold.bench.kernels.ceilings import ADDED, addition, measure_with_fastest_dense_product
from cotswold.bench.measure import rates, ratios, rounded
from cotswold.bench.row import COTSWOLD, Comparison, Row, RowKey, giga
from cotswold.optim.server_rules import Rule
from cotswold.shards.core import admission
from cotswold.shards.runtime.arithmetic import NumpyArithmetic

BAR = 0.8
FLOAT_BYTES = 4
QUEUES = ((1, 1), (1, 8), (1, 32), (1, 128), (1, 512), (16, 8))
"""Numbers of queued pushes, and examples of each."""


@dataclass(frozen=True)
class Factors:
    """A rule, and blocks of weights ``(row, column)`` with about ``elements`` numbers in total."""

    rule: Rule
    rows: int
    columns: int
    elements: int

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"{self.rule.name}, {self.rows} x {self.columns}"

    @property
    def count(self) -> int:
        """Number of blocks."""
        return max(1, self.elements // (self.rows * self.columns))

    def flops(self, pushes: int, examples: int) -> int:
        """FLOPs of the products of all blocks: two per multiplication and addition."""
        return 2 * pushes * examples * self.rows * self.columns * self.count

    def bytes(self, pushes: int, examples: int) -> int:
        """Least bytes transferred to and from memory."""
        weights = 2 * (1 + len(self.rule.state_names)) * self.rows * self.columns
        return FLOAT_BYTES * self.count * (weights + pushes * examples * (self.rows + self.columns))

    def action(self, pushes: int, examples: int) -> Action:
        """Update all blocks once, each by random factors."""
        random, arithmetic = np.random.default_rng(examples), NumpyArithmetic("float32")
        size = self.rows * self.columns
        weights = np.ones((self.count, size), np.float32)
        kept = np.ones((self.count, len(self.rule.state_names), size), np.float32)
        pool = [
            admission.ReceivedFactors(
                random.standard_normal(examples * self.rows, np.float32),
                random.standard_normal(examples * self.columns, np.float32),
                examples,
            )
            for _ in range(max(pushes, 8))
        ]
        queue = [[(1e-6, pool[(n + each) % len(pool)]) for each in range(pushes)] for n in range(len(pool))]

        def act() -> None:
            for number, (one, beside) in enumerate(zip(weights, kept, strict=True)):
                waiting = queue[number % len(queue)]
                arithmetic.apply(
                    self.rule, [admission.ShardUpdates(one, list(beside), waiting, self.columns)]
                )

        return act


def measured(what: Factors, effort: Effort) -> list[Row]:
    """Every queue compared with its bound."""
    actions: dict[object, Action] = {queue: what.action(*queue) for queue in QUEUES}
    samples, dense = measure_with_fastest_dense_product(actions | {ADDED: addition(what.elements)}, effort)
    flops_s = [dense.work / one for one in dense.seconds]
    bytes_s = [3 * FLOAT_BYTES * what.elements / one for one in samples[ADDED]]
    rows = []
    for pushes, examples in QUEUES:
        flops, taken = what.flops(pushes, examples), samples[pushes, examples]
        moved = what.bytes(pushes, examples)
        pairs = [(flops / product, moved / memory) for product, memory in zip(flops_s, bytes_s, strict=True)]
        of_memory = median(memory - product for product, memory in pairs) > 0
        against = f"memory ({ADDED})" if of_memory else dense.name
        limit = [max(pair) for pair in pairs]
        written = rounded(what.rows * what.columns * what.count / median(taken))
        word = "example" if examples == 1 else "examples"
        operation = f"{examples} {word}" if pushes == 1 else f"{pushes} pushes of {examples} {word}"
        rows.append(
            Row(
                RowKey("factors", what.name, f"{operation}, {written / 1e9:.3g} G weights/s"),
                "GFLOP/s",
                {COTSWOLD: giga(rates(flops, taken)), f"ceiling, {against}": giga(rates(flops, limit))},
                {COTSWOLD: taken, against: limit},
                "seconds",
                [Comparison(against, ratios(limit, taken), BAR)],
                facts={"work": flops, "bytes": moved, "weights_per_second": written},
            )
        )
    return rows
