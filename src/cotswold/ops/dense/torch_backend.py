"""Dense networks by the matrix products of libraries, with samples as the first dimension.

Knows: PyTorch's and oneDNN's products. Does not know: the library's own kernels, choices of a backend.

NumPy's products are left out: `torch.set_num_threads` does not set their threads.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from cotswold.ops.dense.losses import activate, finish, to_slope
from cotswold.ops.dense.spec import DenseSpec


class LayerProducts(Protocol):
    """The three products of a layer with weights ``(out, in)``."""

    def forward(self, x: Tensor, weights: Tensor, biases: Tensor) -> Tensor:
        """Return sums ``(sample, out)``."""
        ...

    def backward(self, delta: Tensor, weights: Tensor) -> Tensor:
        """Return the gradient ``(sample, in)`` with respect to the layer's input."""
        ...

    def add_outer(self, gradient: Tensor, delta: Tensor, x: Tensor) -> None:
        """Add the weights' gradient to ``gradient``."""
        ...


class TorchProducts:
    """Products by `torch.mm`."""

    def forward(self, x: Tensor, weights: Tensor, biases: Tensor) -> Tensor:
        """See `LayerProducts`."""
        return torch.addmm(biases, x, weights.t())

    def backward(self, delta: Tensor, weights: Tensor) -> Tensor:
        """See `LayerProducts`."""
        return torch.mm(delta, weights)

    def add_outer(self, gradient: Tensor, delta: Tensor, x: Tensor) -> None:
        """See `LayerProducts`."""
        gradient.addmm_(delta.t(), x)


class OnednnProducts:
    """Products by oneDNN, called as torch's compiler calls it."""

    def forward(self, x: Tensor, weights: Tensor, biases: Tensor) -> Tensor:
        """See `LayerProducts`."""
        return _linear(x, weights, biases)

    def backward(self, delta: Tensor, weights: Tensor) -> Tensor:
        """See `LayerProducts`."""
        return _linear(delta, weights.t(), None)

    def add_outer(self, gradient: Tensor, delta: Tensor, x: Tensor) -> None:
        """See `LayerProducts`."""
        gradient.add_(_linear(delta.t().contiguous(), x.t(), None))


def _linear(x: Tensor, weights: Tensor, biases: Tensor | None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weights, biases, "none", [], "")
    return found


@lru_cache(maxsize=1)
def has_onednn() -> bool:
    """True if this build of torch has oneDNN's operator and its result is correct."""
    a, b = torch.arange(6.0).view(2, 3), torch.arange(12.0).view(4, 3)
    try:
        return bool(torch.equal(_linear(a, b, None), a @ b.t()))
    except (AttributeError, RuntimeError):
        return False


def add(
    products: LayerProducts,
    spec: DenseSpec,
    parameters: Tensor,
    inputs: Tensor,
    targets: Tensor,
    gradient: Tensor | None,
) -> tuple[float, int]:
    """See `autotune.dense_add`."""
    layers = spec.layers(parameters)
    states = [inputs.t().to(parameters.dtype, memory_format=torch.contiguous_format)]
    for number, (weights, biases) in enumerate(layers):
        sums = products.forward(states[-1], weights, biases)
        last = number == len(layers) - 1
        states.append(sums if last else activate(spec.activation, sums))
    found = finish(spec, states[-1], targets, gradient is not None)
    if gradient is None:
        return found
    delta = states.pop()
    slots = spec.layers(gradient)
    for number in reversed(range(len(layers))):
        below = states.pop()
        weights, biases = slots[number]
        products.add_outer(weights, delta, below)
        biases.add_(delta.sum(0))
        if number:
            delta = to_slope(spec.activation, products.backward(delta, layers[number][0]), below)
    return found


def outputs(spec: DenseSpec, parameters: Tensor, inputs: Tensor) -> Tensor:
    """See `autotune.dense_outputs`."""
    state, products = inputs.t().to(parameters.dtype, memory_format=torch.contiguous_format), TorchProducts()
    layers = spec.layers(parameters)
    for number, (weights, biases) in enumerate(layers):
        last = number == len(layers) - 1
        state = activate(spec.output if last else spec.activation, products.forward(state, weights, biases))
    return state.t()
