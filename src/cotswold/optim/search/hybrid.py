"""Strong Wolfe conditions where a decrease is visible, the approximate ones where rounding hides it.

Knows: the size of a predicted decrease compared with the value, both searches. Does not know: vectors,
evaluations.

Far from a minimum the search of Moré and Thuente takes fewer evaluations, because it fits cubics to values.
Near a minimum, in float32, values are pure rounding, and it finds no step that descends; slopes still do.
Hager and Zhang (2005, section 4) switch conditions for the same reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.optim.search.approximate_wolfe import ApproximateWolfe
from cotswold.optim.search.base import Line, Search, Start
from cotswold.optim.search.strong_wolfe import StrongWolfe


@dataclass(frozen=True)
class RoundedWolfe:
    """Chooses between two searches by the size of the predicted decrease.

    Args:
        strong: the search for visible decreases.
        approximate: the search for decreases that rounding hides.
        visible: smallest visible decrease, as a fraction of |φ(0)|.

    Raises:
        ValueError: if `visible` is not above 0.
    """

    strong: StrongWolfe
    approximate: ApproximateWolfe
    visible: float = 1e-4
    """Fraction of |φ(0)| that the first step must decrease the value by, according to the slope; otherwise
    only slopes are trusted.
    """

    def __post_init__(self) -> None:
        if not self.visible > 0:
            raise ValueError(f"visible must be above 0, got {self.visible}")

    def find_step(self, start: Start) -> Line:
        """Search with the suitable conditions; if the strong search fails, use the approximate one.

        Args:
            start: value and slope at 0, and the first step to try.

        Returns:
            A generator that yields `TrialRequest`, receives `Trial` and returns `Outcome`.
        """
        if -start.slope * start.step > self.visible * abs(start.value):
            outcome = yield from self.strong.find_step(start)
            if outcome.step is not None:
                return outcome
        return (yield from self.approximate.find_step(start))


EXACT = 2.0**-52
"""Machine epsilon of float64; at this precision values are trusted."""


def default_search(epsilon: float, *, decrease: float, curvature: float) -> Search:
    """Return the default line search for a precision.

    Args:
        epsilon: relative precision of the vectors (`Vectors.epsilon`).
        decrease: see `StrongWolfe`.
        curvature: see `StrongWolfe`.

    Returns:
        Strong Wolfe for float64; for float32 a search that copes with rounding (`RoundedWolfe`).
    """
    strong = StrongWolfe(decrease=decrease, curvature=curvature)
    return RoundedWolfe(strong, ApproximateWolfe(curvature=curvature)) if epsilon > EXACT else strong
