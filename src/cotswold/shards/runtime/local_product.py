"""Filters of a locally connected layer: their gradient from factors, and their norms.

Knows: the geometry of the layer, kernels of `ops`. Does not know: messages, callers.

Rows are rows of blocks. Their errors are (image, depth, y, x) of their part of the response map; their
activations are (image, channel, y, x) of the input rows that they see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from cotswold import ops
from cotswold.geometry import BlockLocal
from cotswold.ops.local import decode, encode
from cotswold.shards.runtime.arithmetic import Array


@dataclass(frozen=True)
class LocalProduct:
    """`shards.core.admission.Product` of one layer."""

    start: int
    """Position of its first filter in the vector."""
    layer: BlockLocal

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Self:
        """Return the product described by `numbers`."""
        return cls(numbers[0], decode(tuple(numbers[1:])))

    @property
    def numbers(self) -> tuple[int, ...]:
        """Integers that describe the product in a message."""
        return (self.start, *encode(self.layer))

    def errors(self, first: int, stop: int) -> int:
        """Return the number of errors per image."""
        return self.layer.block_rows(first, stop)[0].output.size

    def activations(self, first: int, stop: int) -> int:
        """Return the number of activations per image that these rows see."""
        return self.layer.block_rows(first, stop)[0].input.size

    def gradient(
        self, errors: Array, activations: Array, rows: tuple[int, int], seen_by: tuple[int, int]
    ) -> Array:
        """Return ``(rows · columns)`` from flat errors of ``rows`` and flat activations of ``seen_by``."""
        band, (low, high) = self.layer.block_rows(*rows)
        wide, (first, _) = self.layer.block_rows(*seen_by)
        delta, seen = (
            _maps(errors, band.output.channels, band.output.height, band.output.width),
            _maps(activations, wide.input.channels, wide.input.height, wide.input.width),
        )
        found: Array = ops.local_outer(delta, seen[:, :, low - first : high - first], band).view(-1).numpy()
        return found

    def scale_to_norm_1(self, weights: Array) -> None:
        """Scale each filter of flat ``(rows · columns)`` weights to norm 1, in place."""
        _, across, high, wide, neurons = self.layer.filters_shape
        ops.scale_to_norm_1(torch.from_numpy(weights).view(-1, across, high, wide, neurons))


def _maps(values: Array, channels: int, height: int, width: int) -> Tensor:
    return torch.from_numpy(values).view(-1, channels, height, width)
