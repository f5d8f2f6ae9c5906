"""Maps and filters of bfloat16 compared with float32.

Knows: the instructions that make it worthwhile, the bar. Does not know: time, processes.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from cotswold.bench.effort import Effort
from cotswold.bench.kernels.baselines import PRODUCTS, Operands
from cotswold.bench.kernels.shapes import Shape
from cotswold.bench.kernels.stacks import cotswold_products
from cotswold.bench.measure import interleaved
from cotswold.bench.row import COTSWOLD, Row, RowKey, compare_with_best_baseline, timed
from cotswold.run import describe_environment

BAR = 1.5
WIDE = "cotswold, float32"
INSTRUCTIONS = {"avx512_bf16", "amx_bf16", "bf16", "svebf16"}
"""Names of processors' instructions for products of bfloat16."""


def measured(shape: Shape, effort: Effort) -> list[Row]:
    """The three products in both types; with a bar only if the processor has the instructions."""
    wide = Operands.random(shape.layer, shape.images)
    x, delta, filters = (one.to(torch.bfloat16) for one in (wide.x, wide.delta, wide.filters))
    narrow = replace(wide, x=x, delta=delta, filters=filters)
    by = {COTSWOLD: cotswold_products(narrow), WIDE: cotswold_products(wide)}
    actions = {(name, who): passes[name] for name in PRODUCTS for who, passes in by.items()}
    samples = interleaved(actions, effort.rounds)
    able = bool(INSTRUCTIONS & set(_flags()))
    note = "" if able else "this processor has no instructions for bfloat16: no bar"
    rows = []
    for name in PRODUCTS:
        taken = {who: samples[name, who] for who in by}
        place = RowKey("bfloat16", shape.name, name, shape.images)
        verdicts = compare_with_best_baseline(taken, BAR if able else None)
        rows.append(timed(place, shape.flops, taken, verdicts, note=note))
    return rows


def _flags() -> list[str]:
    flags = describe_environment()["processor_flags"]
    assert isinstance(flags, list)
    return flags
