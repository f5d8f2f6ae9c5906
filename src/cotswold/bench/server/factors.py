"""Gradients from factors, errorsᵀ · activations, beside the lesser of the product's ceiling and memory.

Knows: FLOPs and the least bytes of such a product, the bar. Does not know: how it is done, processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import numpy as np

from cotswold.bench.effort import Effort
from cotswold.bench.kernels.baselines import Action
from cotswold.bench.kernels.ceilings import ADDED, added, beside_fastest_dense
from cotswold.bench.measure import rates, ratios, rounded
from cotswold.bench.row import OURS, Comparison, Row, RowKey, giga
from cotswold.cluster.arithmetic import NumpyArithmetic

BAR = 0.8
FLOAT_BYTES = 4
EXAMPLES = (1, 8, 32, 128, 512)


@dataclass(frozen=True)
class Factors:
    """A block of weights ``(row, column)``, and over how many numbers memory is measured."""

    rows: int
    columns: int
    elements: int

    @property
    def name(self) -> str:
        """As tables have it."""
        return f"{self.rows} x {self.columns}"

    def flops(self, examples: int) -> int:
        """Two for each multiplication and addition."""
        return 2 * examples * self.rows * self.columns

    def bytes(self, examples: int) -> int:
        """Factors are read once, the gradient is written once."""
        return FLOAT_BYTES * (self.rows * self.columns + examples * (self.rows + self.columns))

    def action(self, examples: int) -> Action:
        """The product of random factors."""
        random, arithmetic = np.random.default_rng(examples), NumpyArithmetic("float32")
        errors = random.standard_normal(examples * self.rows, np.float32)
        activations = random.standard_normal(examples * self.columns, np.float32)
        return lambda: arithmetic.product(errors, activations, examples)


def measured(what: Factors, effort: Effort) -> list[Row]:
    """Every number of examples beside what bounds it."""
    actions: dict[int | str, Action] = {examples: what.action(examples) for examples in EXAMPLES}
    samples, dense = beside_fastest_dense(actions | {ADDED: added(what.elements)}, effort)
    flops_s = [dense.work / one for one in dense.seconds]
    bytes_s = [3 * FLOAT_BYTES * what.elements / one for one in samples[ADDED]]
    rows = []
    for examples in EXAMPLES:
        flops, taken = what.flops(examples), samples[examples]
        pairs = [
            (flops / product, what.bytes(examples) / memory)
            for product, memory in zip(flops_s, bytes_s, strict=True)
        ]
        of_memory = median(memory - product for product, memory in pairs) > 0
        against = f"memory ({ADDED})" if of_memory else dense.name
        limit = [max(pair) for pair in pairs]
        written = rounded(examples * what.rows * what.columns / median(taken))
        rows.append(
            Row(
                RowKey("factors", what.name, f"{examples} {'example' if examples == 1 else 'examples'}"),
                "GFLOP/s",
                {OURS: giga(rates(flops, taken)), f"ceiling, {against}": giga(rates(flops, limit))},
                {OURS: taken, against: limit},
                "seconds",
                [Comparison(against, ratios(limit, taken), BAR)],
                facts={"work": flops, "bytes": what.bytes(examples), "weights_per_second": written},
            )
        )
    return rows
