"""Factors: activations and error terms whose product is the gradient of a layer (Chilimbi et al. 2014, 3.3).

Knows: fully connected and locally connected layers, what of them a range of rows needs. Does not know: how
they are found, who is sent them.

The weights of a fully connected layer of M inputs and N outputs are M·N numbers; the factors of k examples
are k·(M + N). Where its rows lie on S servers the activations go to each of them: k·(M·S + N). The gradient
of biases, N numbers, is the sum of the errors: it has no factors, and is sent as it is.
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
    """The factors of one layer's weights: `replicas.work.Factors`, and what a choice needs.

    Rows of a tensor are outputs, or rows of blocks.
    """

    @property
    def examples(self) -> int:
        """k: how many outer products are summed."""
        ...

    def errors_of(self, first: int, stop: int) -> Tensor:
        """What some rows need for themselves."""
        ...

    def activations_of(self, first: int, stop: int) -> Tensor:
        """What these rows together need besides."""
        ...

    def numbers(self, first: int, stop: int) -> int:
        """How many numbers both are."""
        ...

    def gradient(self) -> Tensor:
        """The gradient of the weights, shaped as they are."""
        ...


@dataclass(frozen=True)
class LinearFactors:
    """Those of a fully connected layer: its gradient is errorsᵀ · activations."""

    errors: Tensor
    """``(examples, outputs)``: the derivatives of the loss by what the layer gave."""
    activations: Tensor
    """``(examples, inputs)``: what it was given."""

    @classmethod
    def of(cls, errors: Tensor, inputs: Tensor) -> LinearFactors:
        """Of ``(…, outputs)`` and ``(…, inputs)``; every vector is an example."""
        return cls(errors.reshape(-1, errors.shape[-1]), inputs.reshape(-1, inputs.shape[-1]))

    @property
    def examples(self) -> int:
        """k: vectors that the layer was given."""
        return self.errors.shape[0]

    def errors_of(self, first: int, stop: int) -> Tensor:
        """``(examples, stop - first)``."""
        return self.errors[:, first:stop].contiguous()

    def activations_of(self, first: int, stop: int) -> Tensor:
        """``(examples, inputs)``: any output needs all."""
        return self.activations.contiguous()

    def numbers(self, first: int, stop: int) -> int:
        """k·(M + N), N of these rows."""
        return self.examples * (self.activations.shape[1] + stop - first)

    def gradient(self) -> Tensor:
        """``(outputs, inputs)``."""
        return self.errors.t() @ self.activations

    @property
    def square(self) -> float:
        """The square of the gradient's norm, from products of examples with each other."""
        alike = (self.errors @ self.errors.t()) * (self.activations @ self.activations.t())
        return float(alike.sum(dtype=torch.float64))


@dataclass(frozen=True)
class LocalFactors:
    """Those of a locally connected layer; its rows are rows of blocks."""

    errors: Tensor
    """``(image, depth, y, x)``, as the layer's responses."""
    activations: Tensor
    """``(image, channel, y, x)``, as its inputs."""
    layer: BlockLocal

    @classmethod
    def of(cls, errors: Tensor, inputs: Tensor, layer: BlockLocal) -> LocalFactors:
        """Of maps, in batches or alone."""
        shape, below = layer.output, layer.input
        return cls(
            errors.reshape(-1, shape.channels, shape.height, shape.width),
            inputs.reshape(-1, below.channels, below.height, below.width),
            layer,
        )

    @property
    def examples(self) -> int:
        """k: images."""
        return self.errors.shape[0]

    def errors_of(self, first: int, stop: int) -> Tensor:
        """``(image, depth, y, x)`` of these rows of blocks."""
        high = self.layer.rows
        return self.errors[:, :, first * high : stop * high].contiguous()

    def activations_of(self, first: int, stop: int) -> Tensor:
        """``(image, channel, y, x)`` of the rows of the input map that these see."""
        seen = self.layer.block_rows(first, stop)[1]
        return self.activations[:, :, slice(*seen)].contiguous()

    def numbers(self, first: int, stop: int) -> int:
        """k·(M + N): M those inputs that these rows see, N their outputs."""
        band = self.layer.block_rows(first, stop)[0]
        return self.examples * (band.input.size + band.output.size)

    def gradient(self) -> Tensor:
        """``(block_y, block_x, field_y, field_x * channel, neuron)``."""
        return ops.local_outer(self.errors, self.activations, self.layer)

    @property
    def square(self) -> float:
        """The square of the gradient's norm."""
        return float(self.gradient().square().sum(dtype=torch.float64))


def joined(factors: Sequence[LinearFactors | LocalFactors]) -> LinearFactors | LocalFactors:
    """Those of one layer in several batches, whose gradient is the sum of theirs."""
    one = factors[0]
    if len(factors) == 1:
        return one
    errors = torch.cat([each.errors for each in factors])
    activations = torch.cat([each.activations for each in factors])
    if isinstance(one, LinearFactors):
        return LinearFactors(errors, activations)
    return LocalFactors(errors, activations, one.layer)


def agree(factors: LinearFactors | LocalFactors, gradient: Tensor) -> bool:
    """Whether factors give this gradient of the weights, but for rounding.

    Not if the weights were used elsewhere as well: in another layer, or in a penalty of the loss.
    """
    found = factors.gradient()
    # sums that cancel err as their terms do, so the bound is that of the terms
    bound = float(torch.linalg.vector_norm(factors.errors) * torch.linalg.vector_norm(factors.activations))
    return (
        float(torch.linalg.vector_norm(found - gradient.reshape(found.shape)))
        <= 32 * torch.finfo(found.dtype).eps * bound
    )
