"""Dense networks by kernels of our own, patterns last.

Knows: in which order products and passes run, which buffers they take. Does not know: how any of them works,
other ways.

Patterns are done in chunks of at most 384, which is also what one chain of a gradient's sum has. A pattern's
outputs have the same bits wherever it is in a batch and whatever threads there are; a gradient has the same
for the same patterns in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import fsum, log

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotswold.geometry import BlockLocal, MapShape, Window
from cotswold.kernels import dense, products
from cotswold.kernels.dense import DenseJob, Layer, Pass
from cotswold.ops.dense.losses import activate, finish, to_slope
from cotswold.ops.dense.spec import DenseSpec

Partials = NDArray[np.float32]
"""What passes leave of groups of outputs: ``(group, number, pattern)``."""
Doubles = NDArray[np.float64]
CHUNK = 384
"""Patterns that are done together, at most: one section of a gradient's sum."""


@lru_cache(maxsize=64)
def _layer(inputs: int, outputs: int) -> BlockLocal:
    """A layer's weights ``(out, in)`` as filters, whose neurons are the inputs: what responds is summed over
    by the adjoint."""
    return BlockLocal(MapShape(outputs, 1, 1), Window(1), Window(1), 1, 1, inputs)


def _map(matrix: Tensor) -> Tensor:
    """``(row, pattern)`` as a map ``(pattern, row, 1, 1)``."""
    return matrix.t()[:, :, None, None]


def _filters(weights: Tensor) -> Tensor:
    return weights[None, None, None]


@dataclass(frozen=True)
class _Matrix:
    """Rows of patterns with room for whole vectors, so that no vector crosses into what is not ours."""

    whole: Tensor
    patterns: int

    @classmethod
    def empty(cls, rows: int, patterns: int, dtype: torch.dtype) -> _Matrix:
        return cls(torch.empty(rows, dense.padded(patterns), dtype=dtype, device="cpu"), patterns)

    @property
    def view(self) -> Tensor:
        """The patterns that there are."""
        return self.whole[:, : self.patterns]

    @property
    def rows(self) -> int:
        return self.whole.shape[0]


def _chunks(patterns: int) -> Iterator[slice]:
    """Nearly equal chunks."""
    parts = -(-patterns // CHUNK)
    for number in range(parts):
        yield slice(number * patterns // parts, (number + 1) * patterns // parts)


def add(
    spec: DenseSpec, parameters: Tensor, inputs: Tensor, targets: Tensor, gradient: Tensor | None
) -> tuple[float, int]:
    """See `ways.dense_add`."""
    losses, right = [], 0
    for chunk in _chunks(inputs.shape[1]):
        network = _Chunk(spec, parameters, gradient, inputs[:, chunk])
        found = network.add(targets[..., chunk])
        losses.append(found[0])
        right += found[1]
    return fsum(losses), right


def outputs(spec: DenseSpec, parameters: Tensor, inputs: Tensor) -> Tensor:
    """See `ways.dense_outputs`."""
    found = torch.empty(spec.sizes[-1], inputs.shape[1], dtype=parameters.dtype, device="cpu")
    for chunk in _chunks(inputs.shape[1]):
        last = _Chunk(spec, parameters, None, inputs[:, chunk]).sums()
        _, biases = spec.layers(parameters)[-1]
        found[:, chunk] = activate(spec.output, last.view.add_(biases[:, None]).t()).t()
    return found


class _Chunk:
    """A network on some patterns."""

    def __init__(self, spec: DenseSpec, parameters: Tensor, gradient: Tensor | None, inputs: Tensor) -> None:
        self.spec, self.layers = spec, spec.layers(parameters)
        self.slots = None if gradient is None else spec.layers(gradient)
        self.patterns, self.dtype = inputs.shape[1], parameters.dtype
        self.states = [self._empty(spec.sizes[0])]
        self.states[0].view.copy_(inputs)

    def _empty(self, rows: int) -> _Matrix:
        return _Matrix.empty(rows, self.patterns, self.dtype)

    def sums(self) -> _Matrix:
        """The sums of the last layer, without biases; what hidden layers respond is kept."""
        for number, (weights, biases) in enumerate(self.layers):
            below, found = self.states[-1], self._empty(weights.shape[0])
            layer = _layer(*weights.shape[::-1])
            products.adjoint(_map(below.view), _filters(weights), layer, _map(found.view))
            if number < len(self.layers) - 1:
                self._activate(found, biases)
                self.states.append(found)
        return found

    def _activate(self, sums: _Matrix, biases: Tensor) -> None:
        if self.dtype != torch.float32:
            activate(self.spec.activation, sums.view.add_(biases[:, None]))
        elif self.spec.activation != "identity" or biases.any():
            operands = {DenseJob.SUMS: sums.whole, DenseJob.BIASES: biases}
            dense.run(Pass("activate", self.spec.activation), self._shape(sums), operands)

    def _shape(self, sums: _Matrix, other: Tensor | None = None) -> Layer:
        pitch = 0 if other is None else other.stride(0)
        low, high = self.spec.low, self.spec.high
        return Layer(sums.rows, self.patterns, sums.whole.stride(0), pitch, low, high)

    def add(self, targets: Tensor) -> tuple[float, int]:
        """The sum of losses and how many are right; adds the gradient, if there is one."""
        delta = self.sums()
        loss, right = self._finish(delta, targets)
        if self.slots is None:
            return loss, right
        for number in reversed(range(len(self.layers))):
            below, (weights, _) = self.states[number], self.layers[number]
            layer = _layer(*weights.shape[::-1])
            into = _filters(self.slots[number][0])
            products.outer(_map(below.view), _map(delta.view), layer, into, adding=True)
            if number:
                following = self._empty(weights.shape[1])
                products.product(_map(delta.view), _filters(weights), layer, _map(following.view))
                self._slope(following, below, self.slots[number - 1][1])
                delta = following
        return loss, right

    def _slope(self, delta: _Matrix, outputs: _Matrix, biases: Tensor) -> None:
        """The gradient by the sums of a hidden layer, and by its biases."""
        if self.dtype != torch.float32:
            to_slope(self.spec.activation, delta.view, outputs.view)
            biases.add_(delta.view.sum(1))
            return
        operands = {
            DenseJob.SUMS: delta.whole,
            DenseJob.OTHER: outputs.whole,
            DenseJob.BIAS_GRADIENT: biases,
        }
        dense.run(Pass("slope", self.spec.activation), self._shape(delta, outputs.whole), operands)

    def _finish(self, sums: _Matrix, targets: Tensor) -> tuple[float, int]:
        """The loss of the last layer; its sums become slopes where there is a gradient."""
        values, slopes = targets.dtype.is_floating_point, self.slots is not None
        cross = self.spec.loss == "cross_entropy"
        hot = self.spec.output == "softmax" and not values and self.spec.low == 0
        passes = hot if cross else self.spec.output != "softmax"
        biases = self.layers[-1][1]
        if self.dtype != torch.float32 or not passes:
            found = finish(self.spec, sums.view.add_(biases[:, None]).t(), targets, slopes)
            if self.slots is not None:
                self.slots[-1][1].add_(sums.view.sum(1))
            return found
        operands = {DenseJob.SUMS: sums.whole, DenseJob.BIASES: biases}
        if self.slots is not None:
            operands[DenseJob.BIAS_GRADIENT] = self.slots[-1][1]
        if values:
            operands[DenseJob.OTHER] = targets = _rows(targets)
        else:
            classes = torch.full((dense.padded(self.patterns),), -1, dtype=torch.int32, device="cpu")
            classes[: self.patterns] = targets
            operands[DenseJob.CLASSES] = classes
        layer = self._shape(sums, targets if values else None)
        operands[DenseJob.PARTIALS] = partials = dense.partials_of(layer)
        found = partials[:, :, : self.patterns].numpy()
        if cross:
            return self._softmax(layer, operands, found)
        dense.run(Pass("squared", self.spec.output, values, slopes), layer, operands)
        losses = _down(found[:, 0])
        return fsum(losses.tolist()), 0 if values else _right(found, losses)

    def _softmax(self, layer: Layer, operands: dict[DenseJob, Tensor], found: Partials) -> tuple[float, int]:
        """The cross entropy of a softmax: exponentials less the greatest of each group, then of all."""
        dense.run(Pass("softmax", slopes=self.slots is not None), layer, operands)
        own, greatest = found[:, 1].max(0).astype(np.float64), found[:, 1:].max(1)
        most = greatest.max(0).astype(np.float64)
        scales = torch.from_numpy(greatest - most).exp_().numpy()
        sums = _down(found[:, 0] * scales)
        losses = self.spec.high * (most - own + np.array([log(one) for one in sums.tolist()]))
        right = _right(found, losses)
        if self.slots is not None:
            found[:, 0] = scales * (self.spec.high / sums)
            dense.run(Pass("softmax_slopes"), layer, operands)
        return fsum(losses.tolist()), right


def _rows(targets: Tensor) -> Tensor:
    """Values to predict, as rows of float32 patterns."""
    values = targets.to(torch.float32)
    return values if values.stride(1) == 1 or values.shape[1] == 1 else values.contiguous()


def _down(groups: Partials | Doubles) -> Doubles:
    """The sum of ``(group, pattern)``, group after group; NumPy adds a lone pattern's in another order."""
    total = np.zeros(groups.shape[1])
    for one in groups:
        total += one
    return total


def _right(found: Partials, losses: Doubles) -> int:
    """How many patterns have the greatest sum at their own class; none whose loss is no number."""
    greater = found[:, 1].max(0) > found[:, 2].max(0)
    return int((greater & ~np.isnan(losses)).sum())
