"""Every operation of a layer or stack, ready to be timed.

Knows: operands, FLOPs and the least bytes that each operation must move. Does not know: time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cotswold import ops
from cotswold.bench.rivals import Operands, jax_products, unfolded
from cotswold.bench.shapes import Shape
from cotswold.geometry import StackGeometry

Action = Callable[[], object]
OURS, UNFOLD, JAX = "cotswold", "unfold + einsum", "JAX"
PRODUCTS = ("Wx", "W'x", "δx'")
STEP_RATE = 0.1
FLOAT_BYTES = 4


@dataclass(frozen=True)
class Operation:
    """One operation by everybody who can do it; ``work`` in FLOPs or bytes."""

    name: str
    work: int
    by: dict[str, Action]


def products(shape: Shape) -> list[Operation]:
    """The three products, by us and by what one would write today.

    Where the shape is foreign, ours take contiguous NCHW maps and make their results contiguous NCHW.
    """
    layer, images = shape.layer, shape.images
    x = torch.randn(images, layer.input.channels, layer.input.height, layer.input.width)
    delta = torch.randn(images, layer.output.channels, layer.output.height, layer.output.width)
    filters = ops.random_filters(layer, 0, 0)
    operands = Operands(x, delta, filters, layer)
    ours: dict[str, Action]
    if shape.foreign:
        ours = {
            "Wx": lambda: ops.local_product(x, filters, layer).contiguous(),
            "W'x": lambda: ops.local_adjoint(delta, filters, layer).contiguous(),
            "δx'": lambda: ops.local_outer(delta, x, layer),
        }
    else:
        last, delta_last = ops.images_last(x), ops.images_last(delta)
        ours = {
            "Wx": lambda: ops.local_product(last, filters, layer),
            "W'x": lambda: ops.local_adjoint(delta_last, filters, layer),
            "δx'": lambda: ops.local_outer(delta_last, last, layer),
        }
    contestants = {OURS: ours, UNFOLD: unfolded(operands), JAX: jax_products(operands)}
    return [
        Operation(name, shape.flops, {by: found[name] for by, found in contestants.items() if name in found})
        for name in PRODUCTS
    ]


def step(shape: Shape, stack: StackGeometry) -> Operation:
    """The whole training step of a stack: five products, and everything between them."""
    batch = ops.images_last(_maps(shape.images, stack.input.channels, stack.input.height, stack.input.width))
    filters = ops.random_filters(shape.layer, 0, 0)
    one = torch.ones(())
    state = ops.StackState(
        filters, torch.ones(shape.layer.norms_shape), torch.zeros_like(filters), one, one.clone()
    )
    objective, rule = ops.StackObjective(), ops.StepRule(rate=STEP_RATE)
    ops.calibrate(state, batch, stack, objective)
    work = shape.images * stack.update_flops
    return Operation("stack_step", work, {OURS: lambda: ops.stack_step(state, batch, stack, objective, rule)})


def passes(shape: Shape, stack: StackGeometry) -> list[Operation]:
    """What memory bounds: norms of filters; pooling and normalisation, forward and backward.

    Bytes are those of the maps that go in and come out, each once; gradients count as maps.
    """
    filters = ops.random_filters(shape.layer, 0, 0)
    images, responses = shape.images, stack.responses
    z = ops.images_last(_maps(images, responses.channels, responses.height, responses.width))
    norms = Operation(
        "filter norms", filters.numel() * FLOAT_BYTES, {OURS: lambda: ops.filter_norms(filters)}
    )
    pool = _smoothing("L2 pooling", lambda x: ops.l2_pool(x, stack.pool), z)
    if stack.norm.size == 1:
        return [norms, *pool]
    pooled = ops.l2_pool(z, stack.pool)
    norm = _smoothing("contrast normalisation", lambda x: ops.contrast_norm(x, stack.norm), pooled)
    return [norms, *pool, *norm]


def _smoothing(name: str, function: Callable[[Tensor], Tensor], x: Tensor) -> list[Operation]:
    leaf = x.detach().requires_grad_()
    y = function(leaf)
    above = ops.images_last(torch.randn_like(y))
    once = (x.numel() + y.numel()) * FLOAT_BYTES

    def forward() -> object:
        with torch.no_grad():
            return function(x)

    def backward() -> object:
        return torch.autograd.grad(y, leaf, above, retain_graph=True)

    read_again = x.numel() * FLOAT_BYTES
    return [
        Operation(name, once, {OURS: forward}),
        Operation(f"{name}, backward", once + read_again, {OURS: backward}),
    ]


def _maps(images: int, channels: int, height: int, width: int) -> Tensor:
    return torch.randn(height, width, channels, images).permute(3, 2, 0, 1)
