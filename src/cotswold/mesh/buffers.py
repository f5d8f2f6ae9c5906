"""Buffers that exchanges use again and again.

Knows: sizes, types and devices of buffers. Does not know: what travels in them.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

KEPT = 8
"""Buffers of one size that are kept at most."""


class Buffers:
    """Flat tensors, handed out and taken back."""

    def __init__(self) -> None:
        self._free: dict[tuple[int, torch.dtype, torch.device], list[Tensor]] = defaultdict(list)

    def take(self, numel: int, like: Tensor) -> Tensor:
        """A tensor of so many numbers, of any values."""
        free = self._free[numel, like.dtype, like.device]
        return free.pop() if free else like.new_empty(numel)

    def give(self, buffer: Tensor) -> None:
        """Take a tensor back that nobody reads any more."""
        free = self._free[buffer.numel(), buffer.dtype, buffer.device]
        if len(free) < KEPT:
            free.append(buffer)
