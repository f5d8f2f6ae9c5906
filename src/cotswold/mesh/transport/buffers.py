"""Buffers that exchanges use again and again.

Knows: sizes, types and devices of buffers. Does not know: what travels in them.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

KEPT = 8
"""Buffers of one size that are kept at most."""
SIZES = 64
"""Sizes of which any are kept; the oldest go first."""


class Buffers:
    """Flat tensors, handed out and taken back."""

    def __init__(self) -> None:
        self._free: dict[tuple[int, torch.dtype, torch.device], list[Tensor]] = defaultdict(list)

    def take(self, numel: int, like: Tensor) -> Tensor:
        """A tensor of so many numbers, of any values."""
        free = self._free[numel, like.dtype, like.device]
        if free:
            return free.pop()
        while len(self._free) > SIZES:
            del self._free[next(iter(self._free))]
        with torch.inference_mode(False):  # the next may come with gradients
            return torch.empty(numel, dtype=like.dtype, device=like.device)

    def give(self, buffer: Tensor) -> None:
        """Take a tensor back that nobody reads any more."""
        free = self._free[buffer.numel(), buffer.dtype, buffer.device]
        if len(free) < KEPT:
            free.append(buffer)
