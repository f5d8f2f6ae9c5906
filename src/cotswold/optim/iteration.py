"""Result of an iteration, and the state that resumes a method.

Knows: scalars and names of vectors. Does not know: methods, vectors, the objective.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Iteration:
    """Result of one iteration."""

    number: int
    """Number of the iteration, counted from 1 over the whole optimisation, resumed runs included."""
    value: float
    """Objective at the point where the iteration ended."""
    gradient_norm: float
    """Euclidean norm of the gradient at that point."""
    step: float
    """Step length along the direction; 0 if the point did not move."""
    evaluations: int
    """Evaluations of value and gradient over all samples of the cycle."""
    partial_evaluations: int
    """Evaluations of a slope on a fraction of the samples."""
    patterns: str
    """Name of the sample set that the value belongs to."""
    samples: int
    """Number of samples in that set."""
    restart: str | None = None
    """Why the method restarted with steepest descent; None if it did not."""
    skipped: str | None = None
    """Why the step gave no pair (L-BFGS) or no β (conjugate gradient); None if it gave one."""
    failure: str | None = None
    """Why the point did not move even along steepest descent: no further progress is possible."""
    penalty: float = 0.0
    """Weight decay's share of the value."""
    promised: float = 0.0
    """Decrease of the value that the slopes at both ends of the step predict; more precise than the values.
    """


@dataclass(frozen=True)
class MethodState:
    """State of a method between two steps, for resume."""

    values: Mapping[str, object]
    """Scalars and lists; JSON saves them exactly."""
    vectors: tuple[str, ...]
    """Names of the vectors to save."""
