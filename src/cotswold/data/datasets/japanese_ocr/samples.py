"""Unlimited training samples from few originals: sample i is a function of (seed, i).

Knows: thickening, thinning, shifting, blurring, noise; 64 x 64 bits to 20 x 20 grey. Does not know: printing,
files, labels.

The first n samples are the n unchanged originals; sample i is made from original i modulo n. All arithmetic
is exact on integers (including products of floats that are integers below 2^24), so a sample has the same
bits on every processor and in every batch. Random numbers are a hash of (seed, i) instead of a stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from cotswold.data.datasets.japanese_ocr.printing import SIDE, Bits, unpacked
from cotswold.errors import UserError

GreySamples = NDArray[np.uint8]
"""(sample, 400): rows of 20 x 20, 255 is ink."""
Numbers = NDArray[np.int64]
Words = NDArray[np.uint64]

GRID = 20
FEATURES = GRID * GRID
_BLOCK = 512
"""Samples made at a time; their 64 x 64 floats take 8 MiB."""
_SHIFTS = 17
_SHIFT_STEP = 0.4
"""Distance of two shifts in pixels of 64: 16 steps are 6.4 pixels, or two pixels of 20 x 20."""
_BLURS = (0.0, 0.9, 1.8, 2.8)
"""Deviations of the blur, pixels of 64."""
_WEIGHT = 255
"""Sum of the weights of one pixel of 20; its square is below 2^24, so sums are exact."""
_FINE = 40
"""Subdivisions of a pixel of 64 for the weights; cells and shifts begin between two of them."""
_NOISE_MOST = 24
"""Maximum deviation of the grey noise, of 255."""


@dataclass(frozen=True)
class RandomDraws:
    """Random decisions for each sample, (sample,) each, from the hash of (seed, i)."""

    weight: Words
    """0: thin; 1 and 2: thin along one axis; 3 to 5: thicken likewise; 6 and 7: unchanged."""
    shift_y: Words
    shift_x: Words
    blur: Words
    specks: Words
    noise: Words


def generate_samples(originals: Bits, indices: Numbers, seed: int) -> GreySamples:
    """Return samples by number, in any order, from originals (original, 64) of bits.

    Raises UserError for a negative number.
    """
    if len(indices) and int(indices.min()) < 0:
        raise UserError(f"sample numbers must be at least 0, got {int(indices.min())}")
    found = np.empty((len(indices), FEATURES), np.uint8)
    for start in range(0, len(indices), _BLOCK):
        some = indices[start : start + _BLOCK]
        found[start : start + _BLOCK] = _render(originals[some % len(originals)], some, len(originals), seed)
    return found


def downscale(bits: Bits) -> GreySamples:
    """Return unchanged scans (scan, 64) at 20 x 20."""
    found = np.empty((len(bits), FEATURES), np.uint8)
    for start in range(0, len(bits), _BLOCK):
        some = bits[start : start + _BLOCK]
        middle = np.full(len(some), _SHIFTS // 2, np.uint64)
        found[start : start + _BLOCK] = _reduce(some, middle, middle, np.zeros(len(some), np.uint64))
    return found


def dilate(bits: Bits, along_y: bool, along_x: bool) -> Bits:
    """Ink the neighbours of every ink pixel along the axes."""
    if along_x:
        bits = bits | bits << np.uint64(1) | bits >> np.uint64(1)
    if along_y:
        grown = bits.copy()
        grown[..., 1:] |= bits[..., :-1]
        grown[..., :-1] |= bits[..., 1:]
        bits = grown
    return bits


def erode(bits: Bits, along_y: bool, along_x: bool) -> Bits:
    """Clear the neighbours of every paper pixel along the axes; ink lies beyond the edge."""
    return ~dilate(~bits, along_y, along_x)


def _render(bits: Bits, indices: Numbers, originals: int, seed: int) -> GreySamples:
    draws = _draw(indices, seed)
    changed = indices >= originals
    bits = _weighted(bits.copy(), np.where(changed, draws.weight, np.uint64(7)))
    bits = _add_specks(bits, np.where(changed, draws.specks, np.uint64(0)), indices, seed)
    middle = np.uint64(_SHIFTS // 2)
    grey = _reduce(
        bits,
        np.where(changed, draws.shift_y, middle),
        np.where(changed, draws.shift_x, middle),
        np.where(changed, draws.blur, np.uint64(0)),
    )
    return _noised(grey, np.where(changed, draws.noise, np.uint64(0)), indices, seed)


def _distinct_indices(indices: Numbers, words: int) -> Words:
    """Return distinct numbers for ``words`` words of each sample (sample, word)."""
    first = (indices * words).astype(np.uint64)
    places: Words = np.add.outer(first, np.arange(words, dtype=np.uint64))
    return places


def _draw(indices: Numbers, seed: int) -> RandomDraws:
    word = _hash(indices.astype(np.uint64), seed, 0)
    fields = [(word >> np.uint64(8 * at)) & np.uint64(255) for at in range(6)]
    scaled = [
        field * np.uint64(n) >> np.uint64(8) for field, n in zip(fields, (8, 17, 17, 4, 4, 4), strict=True)
    ]
    return RandomDraws(*scaled)


def _weighted(bits: Bits, weight: Words) -> Bits:
    """Thin or thicken by a pixel of 64 along x, y or both; a sample that thinning would erase is
    unchanged.
    """
    for number, along_y, along_x in ((0, True, True), (1, True, False), (2, False, True)):
        chosen = weight == number
        thin = erode(bits[chosen], along_y, along_x)
        before, after = np.bitwise_count(bits[chosen]).sum(1), np.bitwise_count(thin).sum(1)
        bits[chosen] = np.where((2 * after >= before)[:, None], thin, bits[chosen])
    for number, along_y, along_x in ((3, True, True), (4, True, False), (5, False, True)):
        chosen = weight == number
        bits[chosen] = dilate(bits[chosen], along_y, along_x)
    return bits


def _add_specks(bits: Bits, amount: Words, indices: Numbers, seed: int) -> Bits:
    """Flip random pixels: of 4096 none, or on average 4, 16 or 64."""
    for level, ands in ((1, 10), (2, 8), (3, 6)):
        chosen = np.flatnonzero(amount == level)
        place = _distinct_indices(indices[chosen], SIDE)
        flips = _hash(place, seed, 1)
        for each in range(1, ands):
            flips &= _hash(place, seed, 1 + each)
        bits[chosen] ^= flips
    return bits


def _reduce(bits: Bits, shift_y: Words, shift_x: Words, blur: Words) -> GreySamples:
    """Reduce 64 x 64 bits to 20 x 20 grey, shifted and blurred, by two products of integers."""
    weights = _weights()
    pixels = unpacked(bits).astype(np.float32)
    down = weights[blur, shift_y]
    across = weights[blur, shift_x].transpose(0, 2, 1)
    sums = np.matmul(np.matmul(down, pixels), across)
    whole = sums.reshape(len(bits), FEATURES).astype(np.int64)
    grey: GreySamples = ((whole + _WEIGHT // 2) // _WEIGHT).astype(np.uint8)
    return grey


def _noised(grey: GreySamples, amount: Words, indices: Numbers, seed: int) -> GreySamples:
    """Add normal noise with a deviation of 0, 8, 16 or 24."""
    chosen = np.flatnonzero(amount > 0)
    words = -(-FEATURES // 8)
    place = _distinct_indices(indices[chosen], words)
    chance = _hash(place, seed, 20).astype("<u8").view(np.uint8)[:, :FEATURES]
    tables = _normal()[amount[chosen].astype(np.int64)]
    noise = np.take_along_axis(tables, chance.astype(np.int64), 1)
    grey[chosen] = np.clip(grey[chosen].astype(np.int16) + noise, 0, 255).astype(np.uint8)
    return grey


@lru_cache(maxsize=1)
def _weights() -> NDArray[np.float32]:
    """Return the integer weight of each of 64 pixels in each of 20, (blur, shift, 20, 64); they sum to
    255.
    """
    places = (np.arange(SIDE * _FINE) + 0.5) / _FINE
    cells = np.arange(GRID + 1)[:, None] * SIDE / GRID
    found = np.zeros((len(_BLURS), _SHIFTS, GRID, SIDE))
    for b, deviation in enumerate(_BLURS):
        for s in range(_SHIFTS):
            away = cells - (places + (s - _SHIFTS // 2) * _SHIFT_STEP)
            before = ndtr(away / deviation) if deviation else np.heaviside(away, 1.0)
            found[b, s] = np.diff(before, axis=0).reshape(GRID, SIDE, _FINE).mean(2)
    return _round_weights(np.round(found * (_WEIGHT * GRID / SIDE), 6))


def _round_weights(weights: NDArray[np.float64]) -> NDArray[np.float32]:
    """Round so that each row keeps its sum (largest remainders; the first of equal ones)."""
    floors = np.floor(weights)
    left = np.rint(weights.sum(-1) - floors.sum(-1)).astype(np.int64)
    order = np.argsort(np.round(floors - weights, 6), axis=-1, kind="stable")
    rank = np.argsort(order, axis=-1, kind="stable")
    whole: NDArray[np.float32] = (floors + (rank < left[..., None])).astype(np.float32)
    return whole


@lru_cache(maxsize=1)
def _normal() -> NDArray[np.int16]:
    """Return quantiles of the normal distribution for noise of each deviation: (amount, byte)."""
    quantiles = np.array([NormalDist().inv_cdf((byte + 0.5) / 256) for byte in range(256)])
    tables = quantiles * np.arange(4)[:, None] * (_NOISE_MOST / 3)
    whole: NDArray[np.int16] = np.rint(tables).astype(np.int16)
    return whole


def _hash(numbers: Words, seed: int, salt: int) -> Words:
    """Return 64 random bits for each number: splitmix64's finaliser (Steele, Lea and Flood 2014), twice."""
    key = np.uint64((seed * 0x9E3779B97F4A7C15 + salt * 0xD1342543DE82EF95 + 0x632BE59BD9B4E019) % (1 << 64))
    word = numbers.astype(np.uint64)
    for _ in range(2):
        word = word + key
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        word = word ^ (word >> np.uint64(31))
    return word
