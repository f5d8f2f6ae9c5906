"""The words between a line search and whoever evaluates for it.

Knows: steps, values, slopes. Does not know: vectors, directions, evaluations.

A search is a generator: it yields an `Ask`, is sent the `Trial`, and returns an `Outcome`.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from math import isfinite
from typing import Protocol


@dataclass(frozen=True)
class Start:
    """A line: the function φ of the step at 0, and where to look first."""

    value: float
    """φ(0)."""
    slope: float
    """φ'(0) < 0."""
    step: float
    """The first step to try."""


@dataclass(frozen=True)
class Ask:
    """Evaluate at this step."""

    step: float
    part: float | None = None
    """The fraction of the patterns that suffices, where the sign of the slope is all that is asked."""


@dataclass(frozen=True)
class Trial:
    """What was found at a step."""

    step: float
    value: float
    """φ there; of no use where part of the patterns was evaluated."""
    slope: float
    """φ' there."""

    @property
    def finite(self) -> bool:
        """Neither NaN nor infinite."""
        return isfinite(self.value) and isfinite(self.slope)


@dataclass(frozen=True)
class Outcome:
    """How a search ended."""

    step: float | None
    """The step to take; None where none was found."""
    weak: str | None = None
    """Why the search ended without meeting its conditions; None where it met them."""


Line = Generator[Ask, Trial, Outcome]


class Search(Protocol):
    """Looks for a step along a line."""

    def along(self, start: Start) -> Line:
        """Ask for trials until a step is found."""
        ...
