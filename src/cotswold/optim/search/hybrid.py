"""Strong Wolfe conditions where a decrease can be seen, the approximate ones where rounding hides it.

Knows: how small a promised decrease is beside the value, both searches. Does not know: vectors, evaluations.

Far from a minimum the search of Moré and Thuente takes fewer evaluations, for it draws cubics through values.
Near one, in float32, values are rounding alone, and it finds no step that goes down; slopes still tell. Hager
and Zhang (2005, section 4) go over from one kind of condition to the other for the same reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.optim.search.approximate_wolfe import ApproximateWolfe
from cotswold.optim.search.base import Line, Search, Start
from cotswold.optim.search.strong_wolfe import StrongWolfe


@dataclass(frozen=True)
class RoundedWolfe:
    """Both searches, and when which of them goes."""

    strong: StrongWolfe
    approximate: ApproximateWolfe
    visible: float = 1e-4
    """The part of |φ(0)| that the first step must promise by the slope, or slopes alone are trusted."""

    def __post_init__(self) -> None:
        if not self.visible > 0:
            raise ValueError(f"visible is {self.visible}; it must be above 0")

    def along(self, start: Start) -> Line:
        """Ask as the search that suits; as the approximate one, too, where the strong one found nothing."""
        if -start.slope * start.step > self.visible * abs(start.value):
            outcome = yield from self.strong.along(start)
            if outcome.step is not None:
                return outcome
        return (yield from self.approximate.along(start))


EXACT = 2.0**-52
"""The epsilon of float64, in which values are trusted."""


def suited(epsilon: float, *, decrease: float, curvature: float) -> Search:
    """The search for vectors of this `Vectors.epsilon`: strong Wolfe, with regard to rounding in float32."""
    strong = StrongWolfe(decrease=decrease, curvature=curvature)
    return RoundedWolfe(strong, ApproximateWolfe(curvature=curvature)) if epsilon > EXACT else strong
