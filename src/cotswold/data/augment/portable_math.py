"""Elementary functions with identical bits on every processor.

Knows: formulas in float64. Does not know: their use.

NumPy and the C library round differently with different vector instructions. The functions here use only
additions, products, quotients and whole powers of 2, each rounded separately: Taylor series on a short range.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

_LOG2_HIGH, _LOG2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
"""High and low part of ln 2; the high part has few bits, so that its integer multiples are exact."""
_QUARTER_HIGH, _QUARTER_LOW = 1.57079632673412561417e00, 6.07710050650619224932e-11
"""High and low part of π / 2."""


def exp(values: Float64) -> Float64:
    """Return e to the power of values between -700 and 700."""
    whole = np.rint(values / math.log(2))
    rest = (values - whole * _LOG2_HIGH) - whole * _LOG2_LOW
    series = _series(rest, [1 / math.factorial(n) for n in range(15)])
    found: Float64 = np.ldexp(series, whole.astype(np.int64))
    return found


def log(values: Float64) -> Float64:
    """Return the natural logarithm of positive values."""
    part, power = np.frexp(values)
    small = part < math.sqrt(0.5)
    part, power = np.where(small, 2 * part, part), power - small
    ratio = (part - 1) / (part + 1)
    series = _series(ratio * ratio, [2 / (2 * n + 1) for n in range(12)])
    found: Float64 = ratio * series + power * math.log(2)
    return found


def sine_cosine(angles: Float64) -> tuple[Float64, Float64]:
    """Return sine and cosine of angles between -100 and 100 radians."""
    quarters = np.rint(angles / (math.pi / 2))
    rest = (angles - quarters * _QUARTER_HIGH) - quarters * _QUARTER_LOW
    square = rest * rest
    sine = rest * _series(square, [(-1) ** n / math.factorial(2 * n + 1) for n in range(10)])
    cosine = _series(square, [(-1) ** n / math.factorial(2 * n) for n in range(10)])
    turn = quarters.astype(np.int64) % 4
    odd = turn % 2 == 1
    first, second = np.where(odd, cosine, sine), np.where(odd, sine, cosine)
    return np.where(turn >= 2, -first, first), np.where((turn == 1) | (turn == 2), -second, second)


def _series(values: Float64, factors: list[float]) -> Float64:
    """Evaluate a polynomial by Horner's scheme; ``factors`` begin with the constant."""
    found = np.full_like(values, factors[-1])
    for factor in reversed(factors[:-1]):
        found = found * values + factor
    return found
