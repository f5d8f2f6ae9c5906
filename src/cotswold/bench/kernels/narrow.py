"""Maps and filters of bfloat16 compared with float32, and with torch's dense products of bfloat16.

Knows: the instructions that make it worthwhile, the bar. Does not know: time, processes.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from cotswold.bench.effort import Effort
from cotswold.bench.kernels.baselines import PRODUCTS, LayerPasses, Operands
from cotswold.bench.kernels.shapes import Shape
from cotswold.bench.kernels.stacks import cotswold_products
from cotswold.bench.measure import interleaved, ratios
from cotswold.bench.row import COTSWOLD, Comparison, Row, RowKey, timed
from cotswold.run import describe_environment

BAR, TORCH_BAR = 1.5, 0.6
WIDE, TORCH = "cotswold, float32", "torch.bmm, bfloat16"
INSTRUCTIONS = {"avx512_bf16", "amx_bf16", "bf16", "svebf16"}
"""Names of processors' instructions for products of bfloat16."""


def measured(shape: Shape, effort: Effort) -> list[Row]:
    """The three products; with bars only if the processor has the instructions."""
    wide = Operands.random(shape.layer, shape.images)
    x, delta, filters = (one.to(torch.bfloat16) for one in (wide.x, wide.delta, wide.filters))
    narrow = replace(wide, x=x, delta=delta, filters=filters)
    able = bool(INSTRUCTIONS & set(_flags()))
    by = {COTSWOLD: cotswold_products(narrow), WIDE: cotswold_products(wide)}
    if able:  # torch takes seconds for each product without the instructions
        by[TORCH] = _dense_products(shape)
    actions = {(name, who): passes[name] for name in PRODUCTS for who, passes in by.items()}
    samples = interleaved(actions, effort.rounds)
    note = "" if able else "this processor has no instructions for bfloat16: no bar"
    rows = []
    for name in PRODUCTS:
        taken = {who: samples[name, who] for who in by}
        place = RowKey("bfloat16", shape.name, name, shape.images)
        verdicts = [
            Comparison(who, ratios(taken[who], taken[COTSWOLD]), bar if able else None)
            for who, bar in ((WIDE, BAR), (TORCH, TORCH_BAR))
            if who in by
        ]
        rows.append(timed(place, shape.flops, taken, verdicts, note=note))
    return rows


def _dense_products(shape: Shape) -> LayerPasses:
    """Dense products of the same sizes by torch, a block at a time: without overlaps, gathered already."""
    layer = shape.layer
    sizes = (layer.fan_in, layer.neurons), (layer.fan_in, shape.images), (layer.neurons, shape.images)
    blocks = layer.grid[0] * layer.grid[1]
    filters, fields, delta = (torch.randn(blocks, *one).to(torch.bfloat16) for one in sizes)
    return {
        "Wx": lambda: torch.bmm(filters.mT, fields),
        "W'x": lambda: torch.bmm(filters, delta),
        "δx'": lambda: torch.bmm(fields, delta.mT),
    }


def _flags() -> list[str]:
    flags = describe_environment()["processor_flags"]
    assert isinstance(flags, list)
    return flags
