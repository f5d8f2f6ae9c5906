"""Messages between a line search and its caller, which evaluates.

Knows: steps, values, slopes. Does not know: vectors, directions, evaluations.

A search is a generator: it yields a `TrialRequest`, receives a `Trial` and returns an `Outcome`.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from math import isfinite
from typing import Protocol


@dataclass(frozen=True)
class Start:
    """Start of a line: the function φ of the step at 0, and the first step."""

    value: float
    """Value φ(0)."""
    slope: float
    """Slope φ'(0), below 0."""
    step: float
    """First step to try."""


@dataclass(frozen=True)
class TrialRequest:
    """Request to evaluate at a step."""

    step: float
    part: float | None = None
    """Fraction of the samples that is enough, if the search needs only the sign of the slope; None for all
    samples.
    """


@dataclass(frozen=True)
class Trial:
    """Value and slope at a step."""

    step: float
    value: float
    """Value φ at the step; meaningless if only a fraction of the samples was evaluated."""
    slope: float
    """Slope φ' at the step."""

    @property
    def finite(self) -> bool:
        """True if value and slope are finite."""
        return isfinite(self.value) and isfinite(self.slope)


@dataclass(frozen=True)
class Outcome:
    """Result of a search."""

    step: float | None
    """Step to take; None if the search found none."""
    weak: str | None = None
    """Why the search ended without meeting its conditions; None if it met them."""


Line = Generator[TrialRequest, Trial, Outcome]
"""A search in progress along a line."""


class Search(Protocol):
    """A line search."""

    def find_step(self, start: Start) -> Line:
        """Search for a step along a line.

        Args:
            start: value and slope at 0, and the first step to try.

        Returns:
            A generator that yields `TrialRequest`, receives `Trial` and returns `Outcome`.
        """
        ...
