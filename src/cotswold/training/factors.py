"""Factors: activations and error terms whose product is the gradient of a layer (Chilimbi et al. 2014, 3.3).

Knows: fully connected and locally connected layers, what of them a range of rows needs. Does not know: how
they are found, who is sent them.

A fully connected layer of M inputs and N outputs has M·N weights; the factors of k examples are k·(M + N)
numbers. Where its rows lie on S servers the activations go to each of them: k·(M·S + N).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cotswold import ops
from cotswold.geometry import BlockLocal

Rows = tuple[int, int]
"""Rows of a tensor from the first to the one after the last: outputs, or rows of blocks."""


class Factors(Protocol):
    """The factors of one layer's weights and biases, for all its rows or for some of them."""

    @property
    def examples(self) -> int:
        """k: how many outer products are summed."""
        ...

    @property
    def numbers(self) -> int:
        """Numbers that are sent for these rows."""
        ...

    def of_rows(self, rows: Rows) -> Factors:
        """What is needed for some of the rows, as views."""
        ...

    def gradients(self) -> tuple[Tensor, Tensor]:
        """The gradients of the weights and of the biases of these rows, shaped as the layer's."""
        ...

    def bias_gradient(self) -> Tensor:
        """That of the biases alone, the sum of the errors."""
        ...


@dataclass(frozen=True)
class LinearFactors:
    """Those of a fully connected layer: its gradient is errorsᵀ · activations.

    Biases ride along: the last column of the activations is ones, so that the product's last column is the
    gradient of the biases.
    """

    errors: Tensor
    """``(examples, outputs)``: the derivatives of the loss by what the layer gave."""
    activations: Tensor
    """``(examples, inputs + 1)``: what it was given, and ones."""

    @classmethod
    def of(cls, errors: Tensor, inputs: Tensor) -> LinearFactors:
        """Of ``(…, outputs)`` and ``(…, inputs)``; every vector is an example."""
        rows = inputs.reshape(-1, inputs.shape[-1])
        activations = rows.new_empty(rows.shape[0], rows.shape[1] + 1)
        activations[:, :-1] = rows
        activations[:, -1] = 1
        return cls(errors.reshape(-1, errors.shape[-1]), activations)

    @property
    def examples(self) -> int:
        """k: vectors that the layer was given."""
        return self.errors.shape[0]

    @property
    def numbers(self) -> int:
        """k·(M + N), with the ones."""
        return self.errors.numel() + self.activations.numel()

    def of_rows(self, rows: Rows) -> LinearFactors:
        """Those of some outputs, which need all activations."""
        return LinearFactors(self.errors[:, slice(*rows)], self.activations)

    def gradients(self) -> tuple[Tensor, Tensor]:
        """``(outputs, inputs)`` and ``(outputs,)``."""
        product = self.errors.t() @ self.activations
        return product[:, :-1], product[:, -1]

    def bias_gradient(self) -> Tensor:
        """``(outputs,)``."""
        return self.errors.sum(0)


@dataclass(frozen=True)
class LocalFactors:
    """Those of a locally connected layer; its rows are rows of blocks."""

    errors: Tensor
    """``(image, depth, y, x)``, as the layer's responses."""
    activations: Tensor
    """``(image, channel, y, x)``: the rows of the input map that the blocks see."""
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

    @property
    def numbers(self) -> int:
        """k·(M + N), M those inputs that the blocks see."""
        return self.errors.numel() + self.activations.numel()

    def of_rows(self, rows: Rows) -> LocalFactors:
        """Those of some rows of blocks, with the rows of the input map that these see."""
        band, seen = self.layer.block_rows(*rows)
        high = self.layer.rows
        return LocalFactors(
            self.errors[:, :, rows[0] * high : rows[1] * high], self.activations[:, :, slice(*seen)], band
        )

    def gradients(self) -> tuple[Tensor, Tensor]:
        """``(block_y, block_x, field_y, field_x * channel, neuron)`` and ``(block_y, block_x, neuron)``."""
        return ops.local_outer(self.errors, self.activations, self.layer), self.bias_gradient()

    def bias_gradient(self) -> Tensor:
        """``(block_y, block_x, neuron)``."""
        layer = self.layer
        down, across = layer.grid
        apart = self.errors.sum(0).reshape(layer.depth, down, layer.rows, across, layer.columns)
        return apart.permute(1, 3, 2, 4, 0).reshape(layer.norms_shape)


def agree(factors: Factors, gradients: Sequence[Tensor]) -> bool:
    """Whether factors give these gradients, of weights and maybe of biases, but for rounding.

    Not if the weights were used elsewhere as well: in another layer, or in a penalty of the loss.
    """
    pairs = zip(factors.gradients(), gradients, strict=False)
    return all(_close(found, wanted.reshape(found.shape), factors) for found, wanted in pairs)


def _close(found: Tensor, wanted: Tensor, factors: Factors) -> bool:
    assert isinstance(factors, LinearFactors | LocalFactors), "the two that there are"
    # sums that cancel err as their terms do, so the bound is that of the terms
    bound = float(torch.linalg.vector_norm(factors.errors) * torch.linalg.vector_norm(factors.activations))
    return float(torch.linalg.vector_norm(found - wanted)) <= 32 * torch.finfo(found.dtype).eps * bound
