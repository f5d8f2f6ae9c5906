"""Dense networks by the library's kernels, samples last in memory.

Knows: the order of products and passes. Does not know: how any of them works, other backends.

Samples are processed in chunks of at most 384, which is also the length of one chain of a gradient's sum. In
float32 the bits of a sample's outputs do not depend on its place in a batch. The same samples in the same
order give the same bits of the sums for any number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import fsum

import torch
from torch import Tensor

from cotswold.kernels import dense
from cotswold.kernels.dense import Layer, Operand, Operation
from cotswold.ops.dense.last_layer import finish
from cotswold.ops.dense.losses import activate, to_slope
from cotswold.ops.dense.matrices import Matrix, add_outer, add_row_sums, backward, forward, row_totals
from cotswold.ops.dense.spec import DenseSpec

CHUNK = 384
"""Maximum samples of a chunk: one k-block of a gradient's sum."""
_TESTED_KERNELS: set[tuple[object, ...]] = set()
"""Networks and chunks whose kernels are all loaded and have passed their self-tests."""


def chunks(samples: int) -> Iterator[slice]:
    """Split samples into nearly equal chunks."""
    parts = -(-samples // CHUNK)
    for number in range(parts):
        yield slice(number * samples // parts, (number + 1) * samples // parts)


def add(
    spec: DenseSpec, parameters: Tensor, inputs: Tensor, targets: Tensor, gradient: Tensor | None
) -> tuple[float, int]:
    """See `autotune.dense_add`; the gradient changes only after all kernels have passed their self-tests."""
    losses, right = [], 0
    for chunk in chunks(inputs.shape[1]):
        network = _Chunk(spec, parameters, inputs[:, chunk])
        part = targets[..., chunk]
        key = spec, parameters.dtype, torch.get_num_threads(), network.samples, part.dtype.is_floating_point
        if gradient is not None and key not in _TESTED_KERNELS:
            network.add(part, torch.zeros_like(gradient))
            _TESTED_KERNELS.add(key)
            network = _Chunk(spec, parameters, inputs[:, chunk])
        found = network.add(part, gradient)
        losses.append(found[0])
        right += found[1]
    return fsum(losses), right


def outputs(spec: DenseSpec, parameters: Tensor, inputs: Tensor) -> Tensor:
    """See `autotune.dense_outputs`."""
    found = torch.empty(spec.sizes[-1], inputs.shape[1], dtype=parameters.dtype, device="cpu")
    for chunk in chunks(inputs.shape[1]):
        found[:, chunk] = _Chunk(spec, parameters, inputs[:, chunk]).outputs()
    return found


class _Chunk:
    """A network on one chunk of samples."""

    def __init__(self, spec: DenseSpec, parameters: Tensor, inputs: Tensor) -> None:
        self.spec, self.layers = spec, spec.layers(parameters)
        self.samples, self.dtype = inputs.shape[1], parameters.dtype
        self.states = [self._empty(spec.sizes[0])]
        self.states[0].view.copy_(inputs)

    def _empty(self, rows: int) -> Matrix:
        return Matrix.empty(rows, self.samples, self.dtype)

    def outputs(self) -> Tensor:
        """Return outputs ``(output, sample)``."""
        sums, biases = self._sums(), self.layers[-1][1]
        if self.dtype == torch.float32 and self.spec.output != "softmax":
            self._activate(self.spec.output, sums, biases)
            return sums.view
        return activate(self.spec.output, sums.view.add_(biases[:, None]).t(), row_totals).t()

    def _sums(self) -> Matrix:
        """Return the sums of the last layer without biases; keep the outputs of hidden layers."""
        for weights, biases in self.layers[:-1]:
            found = self._empty(weights.shape[0])
            forward(self.states[-1], weights, found)
            self._activate(self.spec.activation, found, biases)
            self.states.append(found)
        found = self._empty(self.spec.sizes[-1])
        forward(self.states[-1], self.layers[-1][0], found)
        return found

    def _activate(self, name: str, sums: Matrix, biases: Tensor) -> None:
        if self.dtype != torch.float32:
            activate(name, sums.view.add_(biases[:, None]))
            return
        operands: dict[Operand, Tensor] = {"sums": sums.padded, "biases": biases}
        dense.run(Operation("activate", name), Layer(sums.rows, sums.columns, sums.pitch), operands)

    def add(self, targets: Tensor, gradient: Tensor | None) -> tuple[float, int]:
        """Return the sum of losses and the number of correct samples; add to the gradient, if given."""
        delta, biases = self._sums(), self.layers[-1][1]
        if gradient is None:
            return finish(self.spec, delta, biases, targets, None)
        slots = self.spec.layers(gradient)
        found = finish(self.spec, delta, biases, targets, slots[-1][1])
        for number in reversed(range(len(self.layers))):
            below = self.states[number]
            add_outer(delta, below, slots[number][0])
            if number:
                above, delta = delta, self._empty(below.rows)
                backward(above, self.layers[number][0], delta)
                self._slope(delta, below, slots[number - 1][1])
        return found

    def _slope(self, delta: Matrix, outputs: Matrix, bias_gradient: Tensor) -> None:
        """Compute the gradient of a hidden layer's sums in place; add to the gradient of its biases."""
        if self.dtype != torch.float32:
            to_slope(self.spec.activation, delta.view, outputs.view)
            add_row_sums(delta, bias_gradient)
            return
        operands: dict[Operand, Tensor] = {"sums": delta.padded, "other": outputs.padded}
        operands["bias_gradient"] = bias_gradient
        layer = Layer(delta.rows, delta.columns, delta.pitch, outputs.pitch)
        dense.run(Operation("slope", self.spec.activation), layer, operands)
