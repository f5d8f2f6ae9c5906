"""The mask of dropout: a hash of one random key and of each element's place, its index in ``x.flatten()``.

Knows: the hash, by NumPy. Does not know: compiled code, generators of random numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cotswold.kernels.warp.images import GOLDEN, hash_words


class Mask(NamedTuple):
    """A mask without its shape."""

    key: int
    """64 bits."""
    kept: int
    """Number of 32-bit words that keep an element: the least ones."""
    scale: float
    """Factor of kept elements."""

    @classmethod
    def of(cls, key: int, probability: float) -> Mask:
        """Return the mask of a key that drops elements with a probability above 0 and below 1."""
        words = 1 << 32
        kept = min(max(round((1 - probability) * words), 1), words - 1)
        return cls(key, kept, 1 / (1 - probability))

    def apply(self, x: Tensor) -> Tensor:
        """Return the tensor times the mask, with the bits of the kernel."""
        low, high = np.uint32(self.key & 0xFFFFFFFF), np.uint32(self.key >> 32 & 0xFFFFFFFF)
        places = np.arange(x.numel(), dtype=np.uint32)
        words = hash_words(hash_words(places * np.uint32(GOLDEN) ^ low) + high)
        kept = torch.from_numpy(words < np.uint32(self.kept)).view(x.shape)
        return x * torch.where(kept, torch.tensor(self.scale, dtype=x.dtype, device="cpu"), 0)
