"""Arguments of a warp, and constants that its kernel shares with the NumPy code.

Knows: arrays in memory. Does not know: LLVM, the kinds of warps, how maps are drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
PaddingMode = Literal["edge", "reflect", "zero"]
PADDING_MODES: tuple[PaddingMode, ...] = ("edge", "reflect", "zero")
"""Padding outside of an image: its nearest pixel, its mirror image, or the value 0."""
MAX_DISTANCE = 2.0**20
"""Maximum distance from an image, in pixels; larger distances are limited to it."""
GOLDEN = 0x9E3779B9
"""Multiplier of the number of a draw, modulo 2^32."""
HASH_MULTIPLIERS = (0x85EBCA6B, 0xC2B2AE35)
"""Multipliers of the 32-bit hash: the finaliser of MurmurHash3 (Appleby 2011)."""


def hash_words(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Apply the hash of `HASH_MULTIPLIERS`: a permutation; each output bit depends on all input bits."""
    words = (words ^ (words >> np.uint32(16))) * np.uint32(HASH_MULTIPLIERS[0])
    words = (words ^ (words >> np.uint32(13))) * np.uint32(HASH_MULTIPLIERS[1])
    return words ^ (words >> np.uint32(16))


@dataclass(frozen=True, eq=False)
class Field:
    """Displacement field: uniform numbers in -1 to 1 by key, smoothed along x, then y; 0 beyond the edge."""

    keys: NDArray[np.uint64]
    """One key per image, ``(image,)``."""
    stream: int
    """Number of the random stream of a key."""
    taps: Float32
    """Weights of neighbours: an odd number of them, symmetric."""
    slopes: Float32
    """Factors ``(image, 2, 2)`` from the two numbers of a pixel to its displacement (y, x), in pixels."""


@dataclass(frozen=True, eq=False)
class Images:
    """Images, and the source position of each pixel of their warped variants."""

    values: Float32
    """Pixels ``(image, channel, y, x)``, contiguous."""
    maps: Float32
    """Affine maps ``(image, 2, 3)`` from output to source positions, (y, x) relative to the centre."""
    field: Field | None
    """Displacements added to the affine maps, or None."""
    fill: PaddingMode
