"""Ordinary untied layers in a foreign model, compared with what one would write today.

Knows: passes, bars. Does not know: time, processes.
"""

from __future__ import annotations

from cotswold.bench.effort import Effort
from cotswold.bench.kernels.baseline_jax import JAX, jax_passes
from cotswold.bench.kernels.baselines import BOTH, FORWARD, UNFOLD, Operands, cotswold_passes, unfolded_passes
from cotswold.bench.kernels.ceilings import measure_with_fastest_dense_product
from cotswold.bench.kernels.shapes import Shape
from cotswold.bench.kernels.stacks import peak_as_baseline
from cotswold.bench.row import COTSWOLD, Row, RowKey, compare_with_best_baseline, timed

BARS = {"untied": 4.0, "few": 1.0}
"""Required speed as a multiple of the better baseline, by group."""
PRODUCTS_OF = {FORWARD: 1, BOTH: 3}


def measured(shape: Shape, effort: Effort) -> list[Row]:
    """Forward, and forward with the gradients by input and filters: NCHW in and out."""
    operands = Operands.random(shape.layer, shape.images)
    compared = {
        COTSWOLD: cotswold_passes(operands),
        UNFOLD: unfolded_passes(operands),
        JAX: jax_passes(operands),
    }
    actions = {(name, by): action for by, passes in compared.items() for name, action in passes.items()}
    samples, ceiling = measure_with_fastest_dense_product(actions, effort)
    found = []
    for name, products in PRODUCTS_OF.items():
        work = products * shape.flops
        taken = {by: seconds for (what, by), seconds in samples.items() if what == name}
        verdicts = compare_with_best_baseline(taken, BARS[shape.group])
        place = RowKey(shape.group, shape.name, name, shape.images)
        slow = [by for by, seconds in taken.items() if len(seconds) < len(taken[COTSWOLD])]
        note = f"a single call of {' and '.join(slow)}, too slow for the rounds" if slow else ""
        found.append(timed(place, work, {**taken, **peak_as_baseline(ceiling, work)}, verdicts, note=note))
    return found
