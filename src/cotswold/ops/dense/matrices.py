"""Matrices of samples for the library's kernels, and the three products of a layer on them.

Knows: the memory layout of rows of samples, the dense layer as a block-local layer with one field. Does not
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
    """Rows of samples, samples last in memory, padded to whole vectors."""

    padded: Tensor
    columns: int

    @classmethod
    def empty(cls, rows: int, samples: int, dtype: torch.dtype) -> Matrix:
        """Return an uninitialised matrix."""
        return cls(torch.empty(rows, dense.padded_lanes(samples), dtype=dtype, device="cpu"), samples)

    @property
    def rows(self) -> int:
        """Number of rows (neurons)."""
        return self.padded.shape[0]

    @property
    def pitch(self) -> int:
        """Elements from one row to the next."""
        return self.padded.shape[1]

    @property
    def view(self) -> Tensor:
        """The samples without padding, ``(row, sample)``."""
        return self.padded[:, : self.columns]

    @property
    def map(self) -> Tensor:
        """The samples as a map ``(sample, row, 1, 1)`` for products."""
        return self.view.t()[:, :, None, None]


@lru_cache(maxsize=256)
def dense_layer(inputs: int, outputs: int) -> BlockLocal:
    """Weights ``(out, in)`` as filters: positions of the block-local layer are outputs, neurons inputs."""
    return BlockLocal(MapShape(outputs, 1, 1), Window(1), Window(1), 1, 1, inputs)


def forward(x: Matrix, weights: Tensor, sums: Matrix) -> None:
    """Write ``W x`` into ``sums``, for weights ``(out, in)``."""
    products.adjoint(x.map, weights[None, None, None], dense_layer(x.rows, sums.rows), sums.map)


def backward(delta: Matrix, weights: Tensor, gradient: Matrix) -> None:
    """Write ``W' δ`` into ``gradient``."""
    layer = dense_layer(gradient.rows, delta.rows)
    products.product(delta.map, weights[None, None, None], layer, gradient.map)


def add_outer(delta: Matrix, x: Matrix, gradient: Tensor) -> None:
    """Add ``δ x'`` to the gradient of weights ``(out, in)``."""
    layer = dense_layer(x.rows, delta.rows)
    products.outer(x.map, delta.map, layer, gradient[None, None, None], accumulates=True)


def add_row_sums(delta: Matrix, gradient: Tensor) -> None:
    """Add sums over samples to the gradient of biases ``(out,)``, in the products' order of summation."""
    ones = Matrix.empty(1, delta.columns, delta.padded.dtype)
    ones.padded.fill_(1)
    add_outer(delta, ones, gradient[:, None])


def row_totals(values: Tensor) -> Tensor:
    """Sum ``(sample, output)`` over outputs, to ``(sample, 1)``, in the products' order of summation."""
    samples, rows = values.shape
    held, found = Matrix.empty(rows, samples, values.dtype), Matrix.empty(1, samples, values.dtype)
    held.view.copy_(values.t())
    forward(held, values.new_ones(1, rows), found)
    return found.view.t()
