"""Random numbers of samples, each by its key: no sample's depend on another's.

Knows: keys, integers that are mixed. Does not know: what is drawn.

A key is 64 bits (`cotswold.data.keys`): another one for each seed, epoch and sample. Who draws names a
*stream*, so that two that draw for the same sample do not get the same numbers.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
Float32 = NDArray[np.float32]
Words = NDArray[np.uint32]

_GOLDEN = 0x9E3779B9
_UNIT = np.float32(2.0**-24)


def words(keys: Keys, stream: int, count: int) -> Words:
    """``count`` numbers of 32 bits for each key: (sample, count).

    Two rounds of an integer hash whose bits depend on all bits that enter, with the two halves of the key
    before each.
    """
    low, high = (keys & np.uint64(0xFFFFFFFF)).astype(np.uint32), (keys >> np.uint64(32)).astype(np.uint32)
    places = np.arange(count, dtype=np.uint32)
    with np.errstate(over="ignore"):
        begun = places * np.uint32(_GOLDEN) + np.uint32(stream * 0x85EBCA6B & 0xFFFFFFFF)
        return _mixed(_mixed(begun[None] ^ low[:, None]) + high[:, None])


def uniform(keys: Keys, stream: int, count: int, low: float = 0.0, high: float = 1.0) -> Float32:
    """Uniform in ``low`` to ``high``: float32 (sample, count)."""
    unit = (words(keys, stream, count) >> np.uint32(8)).astype(np.float32) * _UNIT
    if (low, high) == (0.0, 1.0):
        return unit
    found: Float32 = np.float32(low) + np.float32(high - low) * unit
    return found


def normal(keys: Keys, stream: int, count: int) -> Float32:
    """Of mean 0 and deviation 1 (Box and Muller 1958): float32 (sample, count)."""
    pairs = -(-count // 2)
    drawn = uniform(keys, stream, 2 * pairs).astype(np.float64)
    radius = np.sqrt(-2 * np.log(1 - drawn[:, :pairs]))
    turn = 2 * math.pi * drawn[:, pairs:]
    both = np.concatenate([radius * np.cos(turn), radius * np.sin(turn)], axis=1)
    found: Float32 = both[:, :count].astype(np.float32)
    return found


def _mixed(state: Words) -> Words:
    """The finaliser of MurmurHash3 (Appleby 2011)."""
    state = (state ^ (state >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    state = (state ^ (state >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    mixed: Words = state ^ (state >> np.uint32(16))
    return mixed
