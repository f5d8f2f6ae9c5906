"""Baseline of an untied layer in JAX: `conv_general_dilated_local`, compiled.

Knows: JAX and its layouts. Does not know: time.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from cotswold.bench.kernels.baselines import (
    BOTH,
    FORWARD,
    LayerPasses,
    Operands,
    by_position,
    conventional_filters,
)

JAX = "JAX"


def with_jax() -> bool:
    """True if JAX is installed."""
    return importlib.util.find_spec("jax") is not None


def jax_passes(operands: Operands) -> LayerPasses:
    """A layer's output, and the same with the gradients by input and filters; empty without JAX."""
    if not with_jax():
        return {}
    jax = importlib.import_module("jax")
    product, x, filters, delta = _operation(operands)

    def value_and_gradients(x: Any, filters: Any, delta: Any) -> Any:
        y, back = jax.vjp(product, x, filters)
        return (y, *back(delta))

    forward, both = jax.jit(product), jax.jit(value_and_gradients)
    return {
        FORWARD: lambda: forward(x, filters).block_until_ready(),
        BOTH: lambda: jax.block_until_ready(both(x, filters, delta)),
    }


def _operation(operands: Operands) -> tuple[Any, Any, Any, Any]:
    """The product as a function of input and filters, and its operands in JAX's layout."""
    jax = importlib.import_module("jax")
    layer, neurons = operands.layer, operands.layer.neurons
    by, bx = layer.grid
    weight = conventional_filters(operands.filters, layer).permute(2, 1, 0).reshape(neurons, -1, by, bx)
    delta = by_position(operands.delta, layer).reshape(-1, neurons, by, bx)
    x, filters, delta = (jax.numpy.asarray(one.contiguous().numpy()) for one in (operands.x, weight, delta))

    def product(x: Any, filters: Any) -> Any:
        return jax.lax.conv_general_dilated_local(
            x,
            filters,
            (layer.y.stride, layer.x.stride),
            ((layer.y.pad_before, layer.y.pad_after), (layer.x.pad_before, layer.x.pad_after)),
            (layer.y.size, layer.x.size),
        )

    return product, x, filters, delta
