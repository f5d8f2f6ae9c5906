"""Commands of an optimiser on flat numbers in memory, with bits that depend on the numbers alone.

Knows: NumPy arrays, rounding. Does not know: names of vectors, shards, messages.

Every product and every sum is rounded by itself and dots add pairs in a fixed order, so neither the place of
a number in memory, nor how many processes share a vector, nor the processor changes a bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cotswold.files.checksum import crc32

Array = NDArray[Any]
"""``(size,)``, float32 or float64."""
_CHUNK = 1 << 14
"""Elements whose products are summed at a time: they stay in cache."""


class NumpyArithmetic:
    """What a server does with the numbers of a shard: `server.shard.Arithmetic`."""

    def __init__(self, dtype: str) -> None:
        self._dtype = np.dtype(dtype)

    def zeros(self, size: int) -> Array:
        """As many zeros."""
        return np.zeros(size, self._dtype)

    def read(self, buffer: object, size: int) -> Array:
        """A copy of what came in a message; raises ValueError where it is no vector of this size."""
        assert isinstance(buffer, bytes | bytearray | memoryview)
        if memoryview(buffer).nbytes != size * self._dtype.itemsize:
            raise ValueError(
                f"{memoryview(buffer).nbytes} bytes are no {size} numbers of {self._dtype.itemsize} bytes"
            )
        return np.frombuffer(buffer, self._dtype).copy()

    def write(self, values: Array) -> memoryview:
        """What goes into a message, which is sent before the values change."""
        return raw(values)

    def combine(self, terms: Sequence[tuple[float, Array]], out: Array | None) -> Array:
        """Σ factor · vector, in order."""
        target = np.empty_like(terms[0][1]) if out is None else out
        combine(target, terms)
        return target

    def multiply(self, left: Array, right: Array, out: Array | None) -> Array:
        """Element by element."""
        target = np.empty_like(left) if out is None else out
        multiply(target, left, right)
        return target

    def dot(self, left: Array, right: Array) -> float:
        """The inner product, in float64."""
        return dot(left, right)

    def add(self, left: Array, right: Array) -> Array:
        """The sum, in the memory of ``left``."""
        add(left, right)
        return left

    def scale(self, values: Array, factor: float) -> Array:
        """The multiple, in place."""
        combine(values, [(factor, values)])
        return values

    def digest(self, values: Array) -> int:
        """The checksum of the bytes."""
        return crc32(raw(values))


def raw(values: Array) -> memoryview:
    """The bytes of contiguous numbers, in place."""
    return values.data.cast("B")


def combine(out: Array, terms: Sequence[tuple[float, Array]]) -> None:
    """``out`` ← Σ factor · vector, in order; ``out`` may be one of them."""
    if not terms:
        out.fill(0)
        return
    given = [
        (factor, each.copy() if number and each is out else each) for number, (factor, each) in enumerate(terms)
    ]
    scratch = np.empty_like(out) if len(terms) > 1 else out
    with np.errstate(all="ignore"):  # what is no number shows in the dots
        for number, (factor, vector) in enumerate(given):
            scaled = vector
            if factor != 1:
                scaled = out if number == 0 else scratch
                np.multiply(vector, out.dtype.type(factor), out=scaled)
            if number:
                np.add(out, scaled, out=out)
            elif scaled is not out:
                np.copyto(out, scaled)


def multiply(out: Array, left: Array, right: Array) -> None:
    """``out`` ← ``left`` · ``right``, element by element."""
    with np.errstate(all="ignore"):
        np.multiply(left, right, out=out)


def add(out: Array, other: Array) -> None:
    """``out`` ← ``out`` + ``other``."""
    with np.errstate(all="ignore"):
        np.add(out, other, out=out)


def dot(left: Array, right: Array) -> float:
    """The inner product, in float64."""
    total = 0.0
    with np.errstate(all="ignore"):
        for start in range(0, left.size, _CHUNK):
            piece = slice(start, start + _CHUNK)
            total += float(np.add.reduce(np.multiply(left[piece], right[piece], dtype=np.float64)))
    return total
