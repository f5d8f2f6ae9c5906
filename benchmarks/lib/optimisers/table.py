"""Every method on every problem, and its target relative to SciPy.

Knows: methods, how runs are compared. Does not know: how a run is counted, where figures are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles

from cotswold.optim import ApproximateWolfe, BunyipSearch, CGMethod, LBFGSMethod, Search, StrongWolfe
from cotswold.optim.cg import BETAS, BetaName
from lib.optimisers.problems import Problem
from lib.optimisers.runs import Counted, Minimiser, ours, run, scipy

RIVALS = {"L-BFGS, strong Wolfe": "SciPy L-BFGS-B", "polak-ribiere, strong Wolfe": "SciPy CG"}
"""Method of SciPy that each method is compared with."""
FACTOR = 1.3
"""Allowed ratio of evaluations; SciPy's own spread applies if it is wider."""
LIMIT = 3000
"""Limit of evaluations to the minimum of a test function or a convex function."""
BUDGET = 300
"""Evaluations on a network."""
SAME = 1e-6
"""Largest difference of values at the same minimum, relative to one plus their size."""


def _lbfgs(search: Search) -> Minimiser:
    return ours(lambda vectors, objective: LBFGSMethod(vectors, objective, line_search=search))


def _cg(beta: BetaName, search: Search) -> Minimiser:
    return ours(lambda vectors, objective: CGMethod(vectors, objective, beta=beta, line_search=search))


def methods() -> dict[str, Minimiser]:
    """Return two methods of SciPy, and L-BFGS and conjugate gradient with every search."""
    found = {"SciPy L-BFGS-B": scipy("L-BFGS-B"), "SciPy CG": scipy("CG")}
    found["L-BFGS, strong Wolfe"] = _lbfgs(StrongWolfe(decrease=1e-3, curvature=0.9))
    found["L-BFGS, approximate Wolfe"] = _lbfgs(ApproximateWolfe())
    for beta in BETAS:
        found[f"{beta}, strong Wolfe"] = _cg(beta, StrongWolfe(curvature=0.4))
        found[f"{beta}, approximate Wolfe"] = _cg(beta, ApproximateWolfe(curvature=0.4))
        found[f"{beta}, Bunyip"] = _cg(beta, BunyipSearch())
    return found


@dataclass(frozen=True)
class Row:
    """A method on a problem, over starts that were moved by 1e-7."""

    problem: str
    kind: str
    method: str
    evaluations: list[int | None]
    """Evaluations to the minimum, or None if it was not reached.

    On networks: to the median loss of SciPy's method of the same name (L-BFGS-B or CG) after two thirds of
    the evaluations.
    """
    lowest: list[float]
    """Values after all allowed evaluations."""
    ratio: float | None = None
    """Median evaluations over those of SciPy; infinite (in JSON null) if most starts did not converge."""
    allowed: float | None = None
    """Largest allowed ratio."""

    @property
    def evaluations_median(self) -> float:
        """Median of the evaluations, infinite if most starts did not converge."""
        return median(float("inf") if each is None else each for each in self.evaluations)

    def as_json(self) -> dict[str, object]:
        """Return the row with quartiles and medians."""
        counts = [float(LIMIT) if each is None else each for each in self.evaluations]
        spread = quantiles(counts)[::2] if len(counts) > 1 else counts * 2
        middle = self.evaluations_median
        return {
            **asdict(self),
            "ratio": None if self.ratio == float("inf") else self.ratio,
            "evaluations_median": None if middle == float("inf") else middle,
            "evaluations_quartiles": spread,
            "lowest_median": median(self.lowest),
        }


def first_below(values: Sequence[float], threshold: float) -> int | None:
    """Return the number of evaluations until a value is at most the threshold, or None."""
    return next((count for count, value in enumerate(values, 1) if value <= threshold), None)


def compared(
    problem: Problem, minimisers: dict[str, Minimiser], starts: int, say: Callable[[str], None] = print
) -> list[Row]:
    """Return the rows of a problem."""
    limit = BUDGET if problem.kind == "network" else LIMIT
    runs = {
        name: [run(each, problem, limit, seed) for seed in range(starts)] for name, each in minimisers.items()
    }
    found: dict[str, Row] = {}
    for name, counted in runs.items():
        reached = _reached(problem, counted, runs[_family(name)], limit)
        found[name] = Row(problem.name, problem.kind, name, reached, [each.lowest[-1] for each in counted])
    rows = []
    for name, row in found.items():
        if name in RIVALS:
            row = _against(row, found[RIVALS[name]])
        rows.append(row)
        say(_line(row))
    return rows


def _family(name: str) -> str:
    return "SciPy L-BFGS-B" if "L-BFGS" in name else "SciPy CG"


def _reached(
    problem: Problem, counted: Sequence[Counted], rival: Sequence[Counted], limit: int
) -> list[int | None]:
    if problem.kind != "network":
        return [each.reached for each in counted]
    place = limit * 2 // 3
    threshold = median(each.lowest[min(place, len(each.values)) - 1] for each in rival)
    return [first_below(each.lowest, threshold) for each in counted]


def _against(row: Row, rival: Row) -> Row:
    counts = [float("inf") if each is None else each for each in rival.evaluations]
    allowed = max(FACTOR, max(counts) / min(counts))
    ratio = row.evaluations_median / rival.evaluations_median
    return Row(row.problem, row.kind, row.method, row.evaluations, row.lowest, ratio, allowed)


def _line(row: Row) -> str:
    beside = "" if row.ratio is None else f"   {row.ratio:.2f} of SciPy's, {row.allowed:.2f} allowed"
    count = row.evaluations_median
    told = "not reached" if count == float("inf") else f"{count:.0f} evaluations"
    return f"{row.problem:<32} {row.method:<36} {told:>17}   {median(row.lowest):<12.6g}{beside}"


def faults(rows: Sequence[Row]) -> list[str]:
    """Return the failed targets: minima that were not reached, and too many evaluations."""
    found = []
    for row in rows:
        if row.ratio is not None and row.allowed is not None and row.ratio > row.allowed:
            found.append(f"{row.problem}: {row.method} takes {row.ratio:.2f} of SciPy's evaluations")
        if row.kind == "network" or row.method.startswith("SciPy"):
            continue
        least = min(median(each.lowest) for each in rows if each.problem == row.problem)
        if None in row.evaluations or abs(median(row.lowest) - least) > SAME * (1 + abs(least)):
            found.append(f"{row.problem}: {row.method} does not reach the minimum")
    return found
