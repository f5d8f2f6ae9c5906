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

Array = NDArray[Any]
"""``(size,)``, float32 or float64."""
_CHUNK = 1 << 14
"""Elements whose products are summed at a time: they stay in cache."""


def combine(out: Array, terms: Sequence[tuple[float, Array]]) -> None:
    """``out`` ← Σ factor · vector, in order; ``out`` may be one of them."""
    if not terms:
        out.fill(0)
        return
    copied = [
        (factor, np.array(each) if number and each is out else each)
        for number, (factor, each) in enumerate(terms)
    ]
    kind = out.dtype.type
    scratch = np.empty_like(out) if len(terms) > 1 else out
    first, vector = copied[0]
    if first == 1:
        if vector is not out:
            np.copyto(out, vector)
    else:
        np.multiply(vector, kind(first), out=out)
    for factor, vector in copied[1:]:
        if factor == 1:
            np.add(out, vector, out=out)
        else:
            np.multiply(vector, kind(factor), out=scratch)
            np.add(out, scratch, out=out)


def multiply(out: Array, left: Array, right: Array) -> None:
    """``out`` ← ``left`` · ``right``, element by element."""
    np.multiply(left, right, out=out)


def add(out: Array, other: Array) -> None:
    """``out`` ← ``out`` + ``other``."""
    np.add(out, other, out=out)


def dot(left: Array, right: Array) -> float:
    """The inner product, in float64."""
    total = 0.0
    for start in range(0, left.size, _CHUNK):
        piece = slice(start, start + _CHUNK)
        total += float(np.add.reduce(np.multiply(left[piece], right[piece], dtype=np.float64)))
    return total
