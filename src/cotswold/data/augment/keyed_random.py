"""Random numbers determined by the key of each sample.

Knows: keys, an integer hash. Does not know: the use of the numbers.

A key is 64 bits (`cotswold.data.keys`), different for each seed, epoch and sample. Each caller uses its own
*stream*, so that two callers receive different numbers for the same sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from cotswold.data.augment import portable_math as exact
from cotswold.kernels.warp import GOLDEN, HASH_MULTIPLIERS, hash_words

Keys = NDArray[np.uint64]
Float32 = NDArray[np.float32]
Words = NDArray[np.uint32]
Shape = int | Sequence[int]

_UNIT = np.float32(2.0**-24)


def random_words(keys: Keys, stream: int, count: int) -> Words:
    """Return ``count`` 32-bit numbers for each key: (sample, count).

    Two rounds of an integer hash, in which each output bit depends on all input bits; half of the key is
    mixed in before each round.
    """
    low, high = (keys & np.uint64(0xFFFFFFFF)).astype(np.uint32), (keys >> np.uint64(32)).astype(np.uint32)
    places = np.arange(count, dtype=np.uint32)
    with np.errstate(over="ignore"):
        begun = places * np.uint32(GOLDEN) + np.uint32(stream * HASH_MULTIPLIERS[0] & 0xFFFFFFFF)
        return hash_words(hash_words(begun[None] ^ low[:, None]) + high[:, None])


def uniform(keys: Keys, stream: int, shape: Shape, low: float = 0.0, high: float = 1.0) -> Float32:
    """Return uniform numbers in ``low`` (inclusive) to ``high`` (exclusive): float32 (sample, *shape)."""
    counts = _counts(shape)
    unit = (random_words(keys, stream, prod(counts)) >> np.uint32(8)).astype(np.float32) * _UNIT
    if (low, high) != (0.0, 1.0):
        unit = np.float32(low) + np.float32(high - low) * unit
    found: Float32 = unit.reshape(len(keys), *counts)
    return found


def normal(keys: Keys, stream: int, shape: Shape) -> Float32:
    """Return normal numbers of mean 0 and deviation 1 (Box and Muller 1958): float32 (sample, *shape)."""
    counts = _counts(shape)
    count = prod(counts)
    pairs = -(-count // 2)
    drawn = uniform(keys, stream, 2 * pairs).astype(np.float64)
    radius = np.sqrt(-2 * exact.log(1 - drawn[:, :pairs]))
    sine, cosine = exact.sine_cosine(2 * math.pi * drawn[:, pairs:])
    both = np.concatenate([radius * cosine, radius * sine], axis=1)
    found: Float32 = both[:, :count].astype(np.float32).reshape(len(keys), *counts)
    return found


def derived(keys: Keys, stream: int) -> Keys:
    """Return other keys, one for each, whose streams are independent of all streams of these."""
    both = random_words(keys, stream, 2).astype(np.uint64)
    found: Keys = both[:, 0] << np.uint64(32) | both[:, 1]
    return found


def _counts(shape: Shape) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)
