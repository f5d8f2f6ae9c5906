"""A pool of buffers for exchanges.

Knows: sizes, types and devices of buffers. Does not know: their contents.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

MAX_FREE = 8
"""Maximum number of free buffers of one size."""
SIZES = 64
"""Number of sizes whose buffers are kept; the oldest are dropped first."""


class BufferPool:
    """A pool of flat tensors."""

    def __init__(self) -> None:
        self._free: dict[tuple[int, torch.dtype, torch.device], list[Tensor]] = defaultdict(list)

    def take(self, numel: int, like: Tensor) -> Tensor:
        """Return an uninitialised tensor of ``numel`` numbers."""
        free = self._free[numel, like.dtype, like.device]
        if free:
            return free.pop()
        while len(self._free) > SIZES:
            del self._free[next(iter(self._free))]
        with torch.inference_mode(False):  # the next user may need gradients
            return torch.empty(numel, dtype=like.dtype, device=like.device)

    def release(self, buffer: Tensor) -> None:
        """Return a tensor to the pool."""
        free = self._free[buffer.numel(), buffer.dtype, buffer.device]
        if len(free) < MAX_FREE:
            free.append(buffer)
