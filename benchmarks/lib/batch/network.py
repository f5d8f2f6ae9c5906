"""The measured work: Bunyip's network on random patterns.

Knows: the network, the number of patterns. Does not know: processes, clocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cotswold.nn import DenseNetwork
from cotswold.shards.runtime.work import PortionSum, TensorSlot

SIZES = (400, 480, 3203)


class Bunyip:
    """Value and gradient of 400-480-3203 (Aberdeen et al. 2000) on rows of bytes, as in a store."""

    def __init__(self, samples: int, sizes: Sequence[int]) -> None:
        self._network = DenseNetwork(tuple(sizes))
        chance = np.random.default_rng(0)
        self._rows = torch.from_numpy(chance.integers(0, 256, (samples, sizes[0]), dtype=np.uint8))
        self._classes = torch.from_numpy(chance.integers(0, sizes[-1], samples))
        weights = chance.standard_normal(self._network.size, dtype=np.float32) * 1e-3
        self._parameters = torch.from_numpy(weights)

    @property
    def parameters(self) -> Tensor:
        """All parameters as one flat vector."""
        return self._parameters

    @property
    def layout(self) -> Sequence[TensorSlot]:
        """Weights and biases."""
        return [TensorSlot.of_shape(slot.name, slot.shape) for slot in self._network.layout]

    @property
    def samples(self) -> int:
        """Number of patterns."""
        return len(self._rows)

    @property
    def flops(self) -> tuple[int, int]:
        """FLOPs of a pattern, counted as in the paper."""
        return self._network.flops

    def add(self, samples: Sequence[int], gradient: Tensor | None) -> PortionSum:
        """Return the sum over some patterns."""
        chosen = torch.from_numpy(np.array(samples, dtype=np.int64))
        rows = self._rows[chosen]
        value, right = self._network.add(self._parameters, rows.t(), self._classes[chosen], gradient)
        return PortionSum(value, len(chosen), {"right": right})

    held_out = 0

    def validate(self, start: int, stop: int) -> PortionSum:
        """Return an empty sum: no patterns are held out."""
        return PortionSum(0.0, 0, {})


def bunyip(*, samples: int, sizes: Sequence[int] = SIZES) -> Bunyip:
    """Return the work named ``"lib.batch.network:bunyip"``."""
    return Bunyip(samples, sizes)
