"""Matrices of patterns for kernels of our own, and the three products of a layer on them.

Knows: how rows of patterns lie in memory, that a layer is a block-local one with a single field. Does not
know: networks, losses.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from cotswold.geometry import BlockLocal, MapShape, Window
from cotswold.kernels import dense, products


@dataclass(frozen=True)
class Matrix:
    """Rows of patterns, the last in memory, with room for whole vectors."""

    whole: Tensor
    patterns: int

    @classmethod
    def empty(cls, rows: int, patterns: int, dtype: torch.dtype) -> Matrix:
        """A matrix whose numbers are not set."""
        return cls(torch.empty(rows, dense.padded(patterns), dtype=dtype, device="cpu"), patterns)

    @property
    def rows(self) -> int:
        """Neurons."""
        return self.whole.shape[0]

    @property
    def pitch(self) -> int:
        """Numbers from one row to the next."""
        return self.whole.shape[1]

    @property
    def view(self) -> Tensor:
        """The patterns that there are, ``(row, pattern)``."""
        return self.whole[:, : self.patterns]

    @property
    def map(self) -> Tensor:
        """The same as a map ``(pattern, row, 1, 1)``, as products take it."""
        return self.view.t()[:, :, None, None]


@lru_cache(maxsize=256)
def _layer(inputs: int, outputs: int) -> BlockLocal:
    """Weights ``(out, in)`` as filters: the layer's positions are our outputs, its neurons our inputs."""
    return BlockLocal(MapShape(outputs, 1, 1), Window(1), Window(1), 1, 1, inputs)


def forward(x: Matrix, weights: Tensor, sums: Matrix) -> None:
    """``W x`` into ``sums``, of weights ``(out, in)``."""
    products.adjoint(x.map, weights[None, None, None], _layer(x.rows, sums.rows), sums.map)


def backward(delta: Matrix, weights: Tensor, gradient: Matrix) -> None:
    """``W' δ`` into ``gradient``."""
    products.product(delta.map, weights[None, None, None], _layer(gradient.rows, delta.rows), gradient.map)


def add_outer(delta: Matrix, x: Matrix, gradient: Tensor) -> None:
    """Add ``δ x'`` to the gradient by weights ``(out, in)``."""
    layer = _layer(x.rows, delta.rows)
    products.outer(x.map, delta.map, layer, gradient[None, None, None], adding=True)


def add_row_sums(delta: Matrix, gradient: Tensor) -> None:
    """Add the sums over patterns to the gradient by biases ``(out,)``, in the order of products."""
    ones = Matrix.empty(1, delta.patterns, delta.whole.dtype)
    ones.whole.fill_(1)
    add_outer(delta, ones, gradient[:, None])


def row_totals(values: Tensor) -> Tensor:
    """The sums over outputs ``(pattern, 1)`` of ``(pattern, output)``, in the order of products."""
    patterns, rows = values.shape
    held, found = Matrix.empty(rows, patterns, values.dtype), Matrix.empty(1, patterns, values.dtype)
    held.view.copy_(values.t())
    forward(held, values.new_ones(1, rows), found)
    return found.view.t()
