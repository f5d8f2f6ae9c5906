"""The products and the training step of a stack compared with the fastest dense product.

Knows: operands, FLOPs, bars. Does not know: time, processes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cotswold import ops
from cotswold.bench.effort import Effort
from cotswold.bench.kernels.baseline_jax import JAX, jax_passes, with_jax
from cotswold.bench.kernels.baselines import (
    FORWARD,
    PRODUCTS,
    UNFOLD,
    Action,
    LayerPasses,
    Operands,
    unfolded,
)
from cotswold.bench.kernels.ceilings import dense_flops, measure_with_dense_products
from cotswold.bench.kernels.shapes import Shape
from cotswold.bench.measure import rates
from cotswold.bench.row import COTSWOLD, Ceiling, Row, RowKey, giga, timed
from cotswold.geometry import StackGeometry

STEP = "stack_step"
BARS = {"Wx": 0.90, "W'x": 0.85, "δx'": 0.90, STEP: 0.75}
"""Required fractions of the dense product's rate, for the paper's stacks."""
JAX_FLOPS_MOST = 5e9
"""FLOPs above which JAX is not measured, as a product takes seconds."""
_STEP_RATE = 0.1


def measured(shape: Shape, effort: Effort) -> list[Row]:
    """The three products and the step, and the dense products of their rounds."""
    assert shape.stack is not None, "stacks are measured"
    operands = Operands.random(shape.layer, shape.images)
    compared = {COTSWOLD: cotswold_products(operands), UNFOLD: unfolded(operands)}
    if with_jax() and shape.flops <= JAX_FLOPS_MOST:
        compared[JAX] = {"Wx": jax_passes(operands)[FORWARD]}
    actions: dict[tuple[str, str], Action] = {
        (name, by): passes[name] for name in PRODUCTS for by, passes in compared.items() if name in passes
    }
    actions[STEP, COTSWOLD] = step(shape.stack, operands.filters, shape.images)
    samples, dense, ceiling = measure_with_dense_products(actions, effort)
    found = []
    for name, bar in BARS.items():
        work = shape.images * shape.stack.update_flops if name == STEP else shape.flops
        taken = {by: seconds for (what, by), seconds in samples.items() if what == name}
        place = RowKey(shape.group, shape.name, name, shape.images)
        verdict = ceiling.compare(work, taken[COTSWOLD], bar if shape.group == "paper" else None)
        found.append(timed(place, work, {**taken, **peak_as_baseline(ceiling, work)}, [verdict]))
    return [*found, dense_row(RowKey(shape.group, shape.name, "dense product"), dense, effort)]


def cotswold_products(operands: Operands) -> LayerPasses:
    """The three products as in a chain of our layers: images last."""
    layer, filters = operands.layer, operands.filters
    x, delta = ops.images_last(operands.x), ops.images_last(operands.delta)
    return {
        "Wx": lambda: ops.local_product(x, filters, layer),
        "W'x": lambda: ops.local_adjoint(delta, filters, layer),
        "δx'": lambda: ops.local_outer(delta, x, layer),
    }


def step(stack: StackGeometry, filters: Tensor, images: int) -> Action:
    """The whole training step of a stack: five products, and everything between them."""
    shape = stack.input
    batch = torch.randn(shape.height, shape.width, shape.channels, images).permute(3, 2, 0, 1)
    norms, momentum = torch.ones(stack.filters.norms_shape), torch.zeros_like(filters)
    one = torch.ones(())
    state = ops.StackState(filters.clone(), norms, momentum, one, one.clone())
    objective, rule = ops.StackObjective(), ops.StepRule(rate=_STEP_RATE)
    ops.calibrate(state, batch, stack, objective)
    return lambda: ops.stack_step(state, batch, stack, objective, rule)


def peak_as_baseline(ceiling: Ceiling, work: float) -> dict[str, list[float]]:
    """The peak as a further baseline: the seconds of this work at the peak rate."""
    return {f"ceiling, {ceiling.name}": [one * work / ceiling.work for one in ceiling.seconds]}


def dense_row(place: RowKey, dense: dict[str, list[float]], effort: Effort) -> Row:
    """The dense products of a run by every library."""
    work = dense_flops(effort.dense_size)
    figures = {by: giga(rates(work, taken)) for by, taken in dense.items()}
    return Row(place, "GFLOP/s", figures, dense, "seconds", facts={"size": effort.dense_size, "work": work})
