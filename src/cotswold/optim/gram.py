"""The L-BFGS two-loop recursion on dots instead of vectors (Chen, Wang and Zhou 2014, vector-free L-BFGS).

Knows: inner products of the pairs s = x − x_old, y = g − g_old and of the gradient. Does not know: vectors.

Every vector of the two loops is a linear combination of the s, the y and g. So the inner products alone
determine the coefficients, for vectors of any length, and the direction is one command.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Products:
    """Inner products of pairs, oldest first, and of the gradient."""

    sy: Sequence[Sequence[float]]
    """``sy[i][j]`` = s_i·y_j; read for i ≤ j only."""
    yy: Sequence[Sequence[float]]
    """``yy[i][j]`` = y_i·y_j."""
    sg: Sequence[float]
    yg: Sequence[float]
    gg: float


@dataclass(frozen=True)
class Direction:
    """d = Σ s[i] s_i + Σ y[i] y_i + g · gradient."""

    s: Sequence[float]
    y: Sequence[float]
    g: float
    slope: float
    """d·gradient."""


def two_loops(p: Products) -> Direction:
    """Return the L-BFGS direction −H g.

    One pair of a parabola with curvature 2 along it gives Newton's step:

    >>> two_loops(Products([[2.0]], [[4.0]], [3.0], [6.0], 9.0)).slope
    -4.5
    """
    count = len(p.sg)
    in_q = [0.0] * count  # the coefficients of the y in q; that of g is 1
    first = [0.0] * count
    for i in reversed(range(count)):
        dot = p.sg[i] + sum(in_q[j] * p.sy[i][j] for j in range(i + 1, count))
        first[i] = dot / p.sy[i][i]
        in_q[i] = -first[i]
    scale = p.sy[-1][-1] / p.yy[-1][-1] if count else 1.0
    in_r = [0.0] * count  # the coefficients of the s in r
    for i in range(count):
        dot = scale * (p.yg[i] + sum(in_q[j] * p.yy[i][j] for j in range(count)))
        dot += sum(in_r[j] * p.sy[j][i] for j in range(i))
        in_r[i] = first[i] - dot / p.sy[i][i]
    s, y = [-each for each in in_r], [-scale * each for each in in_q]
    slope = sum(a * b for a, b in zip(s, p.sg, strict=True)) + sum(
        a * b for a, b in zip(y, p.yg, strict=True)
    )
    return Direction(s, y, -scale, slope - scale * p.gg)
