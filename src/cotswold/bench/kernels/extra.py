"""Temporary memory of an operation, without its operands and results.

Knows: the allocation counts of torch and Python. Does not know: time, processes.

Our kernels allocate scratch through torch, and plans through NumPy: both count, for both sides.
"""

from __future__ import annotations

import gc
import tracemalloc

import torch

from cotswold.bench.effort import Effort
from cotswold.bench.kernels.baselines import UNFOLD, Action, Operands, cotswold_passes, unfolded_passes
from cotswold.bench.kernels.peak import allocations, greatest_sum, peak_of
from cotswold.bench.kernels.shapes import Shape
from cotswold.bench.measure import Spread
from cotswold.bench.row import COTSWOLD, Comparison, Row, RowKey

UNTIED_BAR, STEP_BAR = 0.1, 1.1
_MEGA = 1e6


def measured(shape: Shape, effort: Effort) -> list[Row]:
    """Temporary bytes of a layer's passes compared with `unfold`, or all bytes of a stack's step."""
    if shape.stack is not None:
        return [_step(shape)]
    operands = Operands.random(shape.layer, shape.images)
    ours, theirs = cotswold_passes(operands), unfolded_passes(operands)
    rows = []
    for name in ours:
        found = {COTSWOLD: extra_bytes(ours[name]), UNFOLD: extra_bytes(theirs[name])}
        share = Spread.from_samples([found[COTSWOLD] / max(found[UNFOLD], 1)])
        verdict = Comparison(UNFOLD, share, UNTIED_BAR, "at most")
        rows.append(_row(shape, name, found, verdict))
    return rows


def extra_bytes(action: Action) -> int:
    """Peak bytes of an action, without the tensors that it returns."""
    result = action()  # do not count what is kept for the next call
    results = result if isinstance(result, tuple) else (result,)
    kept = sum(one.numel() * one.element_size() for one in results if isinstance(one, torch.Tensor))
    del result, results
    return max(0, greatest_sum(allocations(action)) - kept) + _python_bytes(action)


def _python_bytes(action: Action) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        action()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def _step(shape: Shape) -> Row:
    assert shape.stack is not None, "stacks are measured"
    found = peak_of(shape.stack, shape.images)
    parts = ("filters_bytes", "momentum_bytes", "activations_bytes")
    counted = sum(value for part in parts if isinstance(value := found[part], int))
    peak = found["peak_bytes"]
    assert isinstance(peak, int), "bytes are counted"
    needed = "filters, momentum, activations"
    verdict = Comparison(needed, Spread.from_samples([peak / counted]), STEP_BAR, "at most")
    return _row(shape, "stack_step, everything", {COTSWOLD: peak, needed: counted}, verdict)


def _row(shape: Shape, name: str, found: dict[str, int], verdict: Comparison) -> Row:
    figures = {by: Spread.from_samples([count / _MEGA]) for by, count in found.items()}
    samples = {by: [float(count)] for by, count in found.items()}
    return Row(RowKey("memory", shape.name, name, shape.images), "MB", figures, samples, "bytes", [verdict])
