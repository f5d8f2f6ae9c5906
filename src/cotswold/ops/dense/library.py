"""Dense networks by the matrix products of torch, patterns first, as its libraries like them.

Knows: products that read and add in place. Does not know: kernels of our own, choices.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cotswold.ops.dense.losses import activate, finish, to_slope
from cotswold.ops.dense.spec import DenseSpec


def add(
    spec: DenseSpec, parameters: Tensor, inputs: Tensor, targets: Tensor, gradient: Tensor | None
) -> tuple[float, int]:
    """See `ways.dense_add`."""
    layers = spec.layers(parameters)
    states = [inputs.t().to(parameters.dtype, memory_format=torch.contiguous_format)]
    for number, (weights, biases) in enumerate(layers):
        sums = torch.addmm(biases, states[-1], weights)
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
        weights.addmm_(below.t(), delta)
        biases.add_(delta.sum(0))
        if number:
            delta = to_slope(spec.activation, delta @ layers[number][0].t(), below)
    return found


def outputs(spec: DenseSpec, parameters: Tensor, inputs: Tensor) -> Tensor:
    """See `ways.dense_outputs`."""
    state = inputs.t().to(parameters.dtype, memory_format=torch.contiguous_format)
    layers = spec.layers(parameters)
    for number, (weights, biases) in enumerate(layers):
        last = number == len(layers) - 1
        state = activate(spec.output if last else spec.activation, torch.addmm(biases, state, weights))
    return state.t()
