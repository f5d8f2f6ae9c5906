"""What a step of a method reports, and what it needs to go on after a stop.

Knows: scalars and names of vectors. Does not know: methods, vectors, what is minimised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Iteration:
    """What one iteration did."""

    number: int
    """Counted from 1 over the whole optimisation, stops included."""
    value: float
    """The objective at the point where the iteration ended."""
    gradient_norm: float
    """The Euclidean length of the gradient there."""
    step: float
    """How far it went along its direction; 0 where it did not move."""
    evaluations: int
    """How many times value and gradient were asked for, over all patterns of the cycle."""
    partial_evaluations: int
    """How many times a slope was asked for on part of the patterns."""
    patterns: str
    """The set of patterns that the value belongs to."""
    samples: int
    """How many patterns that set has."""
    restart: str | None = None
    """Why the direction became that of steepest descent; None where it did not."""
    skipped: str | None = None
    """Why no pair (L-BFGS) or β (conjugate gradient) was made of this step; None where it was."""
    failure: str | None = None
    """Why the point did not move although steepest descent was tried: there is nothing more to gain."""
    penalty: float = 0.0
    """What of the value is weight decay."""
    promised: float = 0.0
    """By how much the value fell as the slopes at both ends of the step say, which are known more exactly."""


@dataclass(frozen=True)
class MethodState:
    """A method between two steps: what resume needs."""

    values: Mapping[str, object]
    """Plain values, which JSON can keep: exact, for it writes floats as they are."""
    vectors: tuple[str, ...]
    """The vectors that must be kept under their names."""
