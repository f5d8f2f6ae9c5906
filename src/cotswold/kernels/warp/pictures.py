"""What a warp is asked for, and the constants that its formulas share with those in NumPy.

Knows: arrays in memory. Does not know: LLVM, what moves there are, how maps are drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Fill = Literal["edge", "reflect", "zero"]
FILLS: tuple[Fill, ...] = ("edge", "reflect", "zero")
"""What lies outside of a picture: its nearest pixel, its mirror image, or the value 0."""
FAR = 2.0**20
"""The greatest distance from a picture, in pixels; what is farther counts as if it were there."""
GOLDEN = 0x9E3779B9
"""What the number of a draw is multiplied by, modulo 2^32."""
MIXERS = (0x85EBCA6B, 0xC2B2AE35)
"""Multipliers of the hash of 32 bits: the finaliser of MurmurHash3 (Appleby 2011)."""


@dataclass(frozen=True, eq=False)
class Field:
    """Uniform numbers in -1 to 1 by key, smoothed along x and then along y; beyond the edge they are 0."""

    keys: NDArray[np.uint64]
    """(image,)."""
    stream: int
    """Which random numbers of a key they are."""
    taps: Float32
    """Weights of neighbours: an odd number of them, the same either way."""
    slopes: Float32
    """(image, 2, 2): what the two numbers of a pixel are multiplied by for its displacement (y, x)."""


@dataclass(frozen=True, eq=False)
class Pictures:
    """Pictures, and where each pixel of their variants comes from."""

    values: Float32
    """(image, channel, y, x), contiguous."""
    maps: Float32
    """(image, 2, 3): from a place of the variant, (y, x) from the middle, to one of the picture."""
    field: Field | None
    """What is added to that."""
    fill: Fill
