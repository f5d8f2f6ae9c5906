"""Result of an iteration of a method.

Knows: figures of an iteration. Does not know: how a method gets them.
"""

from __future__ import annotations

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
    sample_set: str
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
    predicted_decrease: float = 0.0
    """Decrease that the slopes at both ends of the step predict; more precise than the values."""
