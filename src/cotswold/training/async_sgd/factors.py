"""Factors: activations and error terms whose product is the gradient of a layer.

Knows: fully connected and locally connected layers, the parts of factors that a range of rows needs. Does not
know: how factors are found, which server receives them.

The weights of a fully connected layer with M inputs and N outputs are M·N numbers; the factors of k examples
are k·(M + N). If its rows are on S servers, each needs the activations: k·(M·S + N). The gradient of biases,
N numbers, is the sum of the errors; it has no factors and is sent unchanged. Source: Chilimbi et al. 2014,
section 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cotswold import ops
from cotswold.geometry import BlockLocal


class Factors(Protocol):
    """The factors of one layer's weights: `shards.runtime.work.Factors`, and the data for choosing the
    format.

    Rows of a tensor are outputs, or rows of blocks.
    """

    @property
    def examples(self) -> int:
        """k, the number of outer products in the sum."""
        ...

    def errors_of(self, first: int, stop: int) -> Tensor:
        """Return the errors of some rows."""
        ...

    def activations_of(self, first: int, stop: int) -> Tensor:
        """Return the activations that these rows need together."""
        ...

    def numbers(self, first: int, stop: int) -> int:
        """Return the number of values in both."""
        ...

    def gradient(self) -> Tensor:
        """Return the gradient, in the shape of the weights."""
        ...


@dataclass(frozen=True)
class LinearFactors:
    """The factors of a fully connected layer: its gradient is errorsᵀ · activations."""

    errors: Tensor
    """``(examples, outputs)``: the derivatives of the loss by the outputs."""
    activations: Tensor
    """``(examples, inputs)``: the inputs of the layer."""

    @classmethod
    def of(cls, errors: Tensor, inputs: Tensor) -> LinearFactors:
        """Return the factors of errors ``(…, outputs)`` and inputs ``(…, inputs)``; every vector is an
        example.
        """
        return cls(errors.reshape(-1, errors.shape[-1]), inputs.reshape(-1, inputs.shape[-1]))

    @property
    def examples(self) -> int:
        """k, the number of input vectors."""
        return self.errors.shape[0]

    def errors_of(self, first: int, stop: int) -> Tensor:
        """Return the errors ``(examples, stop - first)``."""
        return self.errors[:, first:stop].contiguous()

    def activations_of(self, first: int, stop: int) -> Tensor:
        """Return all activations ``(examples, inputs)``, which every output needs."""
        return self.activations.contiguous()

    def numbers(self, first: int, stop: int) -> int:
        """Return k·(M + N) for the N given rows."""
        return self.examples * (self.activations.shape[1] + stop - first)

    def gradient(self) -> Tensor:
        """Return the gradient ``(outputs, inputs)``."""
        return self.errors.t() @ self.activations

    @property
    def square(self) -> float:
        """The squared norm of the gradient, from inner products of the examples."""
        alike = (self.errors @ self.errors.t()) * (self.activations @ self.activations.t())
        return float(alike.sum(dtype=torch.float64))


@dataclass(frozen=True)
class LocalFactors:
    """The factors of a locally connected layer; its rows are rows of blocks."""

    errors: Tensor
    """``(image, depth, y, x)``, in the shape of the layer's responses."""
    activations: Tensor
    """``(image, channel, y, x)``, in the shape of its inputs."""
    layer: BlockLocal

    @classmethod
    def of(cls, errors: Tensor, inputs: Tensor, layer: BlockLocal) -> LocalFactors:
        """Return the factors of maps, with or without a batch dimension."""
        shape, below = layer.output, layer.input
        return cls(
            errors.reshape(-1, shape.channels, shape.height, shape.width),
            inputs.reshape(-1, below.channels, below.height, below.width),
            layer,
        )

    @property
    def examples(self) -> int:
        """k, the number of images."""
        return self.errors.shape[0]

    def errors_of(self, first: int, stop: int) -> Tensor:
        """Return the errors ``(image, depth, y, x)`` of these rows of blocks."""
        high = self.layer.rows
        return self.errors[:, :, first * high : stop * high].contiguous()

    def activations_of(self, first: int, stop: int) -> Tensor:
        """Return the activations ``(image, channel, y, x)`` of the input rows that these rows of blocks
        read.
        """
        seen = self.layer.block_rows(first, stop)[1]
        return self.activations[:, :, slice(*seen)].contiguous()

    def numbers(self, first: int, stop: int) -> int:
        """Return k·(M + N): M inputs that these rows read, N outputs."""
        band = self.layer.block_rows(first, stop)[0]
        return self.examples * (band.input.size + band.output.size)

    def gradient(self) -> Tensor:
        """Return the gradient ``(block_y, block_x, field_y, field_x * channel, neuron)``."""
        return ops.local_outer(self.errors, self.activations, self.layer)

    @property
    def square(self) -> float:
        """The squared norm of the gradient."""
        return float(self.gradient().square().sum(dtype=torch.float64))


def concatenate(factors: Sequence[LinearFactors | LocalFactors]) -> LinearFactors | LocalFactors:
    """Concatenate the factors of one layer over batches; the gradient is the sum of theirs."""
    one = factors[0]
    if len(factors) == 1:
        return one
    errors = torch.cat([each.errors for each in factors])
    activations = torch.cat([each.activations for each in factors])
    if isinstance(one, LinearFactors):
        return LinearFactors(errors, activations)
    return LocalFactors(errors, activations, one.layer)


def agree(factors: LinearFactors | LocalFactors, gradient: Tensor) -> bool:
    """Return True if factors give this gradient of the weights, up to rounding.

    False if the weights are also used elsewhere: in another layer, or in a penalty of the loss.
    """
    found = factors.gradient()
    # sums with cancellation err as their terms do, so the bound is that of the terms
    bound = float(torch.linalg.vector_norm(factors.errors) * torch.linalg.vector_norm(factors.activations))
    return (
        float(torch.linalg.vector_norm(found - gradient.reshape(found.shape)))
        <= 32 * torch.finfo(found.dtype).eps * bound
    )
