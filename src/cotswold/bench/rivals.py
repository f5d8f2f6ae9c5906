"""What one would write today for an untied layer: `unfold` and `einsum`, or JAX.

Knows: the layouts that those want. Does not know: time.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from cotswold.geometry import BlockLocal

Action = Callable[[], object]


@dataclass(frozen=True)
class Operands:
    """Contiguous NCHW maps and responses, and filters as our layout has them."""

    x: Tensor
    delta: Tensor
    filters: Tensor
    layer: BlockLocal


def conventional_filters(filters: Tensor, layer: BlockLocal) -> Tensor:
    """Filters ``(place, channel * field_y * field_x, neuron)``, in the order of `unfold`."""
    by, bx, fy, _, neurons = filters.shape
    apart = filters.view(by * bx, fy, layer.x.size, layer.input.channels, neurons)
    return apart.permute(0, 3, 1, 2, 4).reshape(by * bx, -1, neurons).contiguous()


def by_place(responses: Tensor, layer: BlockLocal) -> Tensor:
    """Responses ``(image, depth, y, x)`` as ``(image, neuron, place)``: a block's neurons as channels."""
    (by, bx), images = layer.grid, responses.shape[0]
    apart = responses.reshape(images, layer.depth, by, layer.rows, bx, layer.columns)
    return apart.permute(0, 3, 5, 1, 2, 4).reshape(images, layer.neurons, by * bx).contiguous()


def unfolded(operands: Operands) -> dict[str, Action]:
    """The three products by `unfold` and `einsum`; responses are ``(image, neuron, place)``."""
    x, layer = operands.x, operands.layer
    weight = conventional_filters(operands.filters, layer)
    delta = by_place(operands.delta, layer)
    size, step = (layer.y.size, layer.x.size), (layer.y.step, layer.x.step)
    pads, area = (layer.y.low, layer.x.low), (layer.input.height, layer.input.width)
    assert pads == (layer.y.high, layer.x.high), "unfold pads both sides alike"

    def patches() -> Tensor:
        return functional.unfold(x, size, padding=pads, stride=step)

    def back() -> Tensor:
        columns = torch.einsum("nmp,pkm->nkp", delta, weight)
        return functional.fold(columns, area, size, padding=pads, stride=step)

    return {
        "Wx": lambda: torch.einsum("nkp,pkm->nmp", patches(), weight),
        "W'x": back,
        "δx'": lambda: torch.einsum("nmp,nkp->pkm", delta, patches()),
    }


def with_jax() -> bool:
    """Whether JAX is installed."""
    return importlib.util.find_spec("jax") is not None


def jax_products(operands: Operands) -> dict[str, Action]:
    """``Wx`` and ``δx'`` by `jax.lax.conv_general_dilated_local`, compiled; nothing without JAX.

    Its gradient by the input is left out: 0.04 GFLOP/s on a small shape, too slow to wait for on the others.
    """
    if not with_jax():
        return {}
    import jax

    layer, neurons = operands.layer, operands.layer.neurons
    by, bx = layer.grid
    x = jax.numpy.asarray(operands.x.numpy())
    weight = conventional_filters(operands.filters, layer).permute(2, 1, 0).reshape(neurons, -1, by, bx)
    rhs = jax.numpy.asarray(weight.contiguous().numpy())
    delta = jax.numpy.asarray(by_place(operands.delta, layer).reshape(-1, neurons, by, bx).numpy())

    def product(x: object, w: object) -> object:
        return jax.lax.conv_general_dilated_local(
            x,
            w,
            (layer.y.step, layer.x.step),
            ((layer.y.low, layer.y.high), (layer.x.low, layer.x.high)),
            (layer.y.size, layer.x.size),
        )

    forward = jax.jit(product)
    outer = jax.jit(lambda d, x, w: jax.vjp(lambda w: product(x, w), w)[1](d)[0])
    return {
        "Wx": lambda: forward(x, rhs).block_until_ready(),
        "δx'": lambda: outer(delta, x, rhs).block_until_ready(),
    }
