"""Summary of the cells of the accuracy experiments: means and spread over seeds, paired comparisons.

Knows: names of cells, Student's t. Does not know: how a cell was trained, how it is shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from scipy.stats import t as student

from cotswold.bench.measure import Document, rounded
from cotswold.errors import UserError
from lib.accuracy.cases import SYNCHRONOUS, Candidate, Case, Trained

CONFIDENCE = 0.95


def tuning_key(case: str, replicas: int, candidate: Candidate) -> str:
    """Return the name of a tuning cell."""
    return f"tune; {case}; {replicas}; {candidate.name}"


def final_key(case: str, replicas: int, seed: int) -> str:
    """Return the name of a final cell."""
    return f"{case}; {replicas}; {seed}"


def check_same(cells: Mapping[str, Any], trained: Trained, path: Path) -> None:
    """Raise UserError if a cell of the case was trained by another recipe or on other samples."""
    name = trained.case.name
    for key, cell in cells.items():
        if name in key.split("; ")[:2] and not trained.is_of(cell):
            raise UserError(
                f"{path} has cells of {name} from another recipe, other data or another number of epochs; "
                "use the same, or another --out"
            )


def tuned(cells: Mapping[str, Any], case: str, replicas: int, candidates: Sequence[Candidate]) -> Candidate:
    """Return the candidate with the least final validation loss; of equal ones, the first."""

    def loss(candidate: Candidate) -> float:
        found = cells[tuning_key(case, replicas, candidate)]["way"][-1]["loss"]
        return float("inf") if found is None else float(found)

    return min(candidates, key=loss)


def finals(cells: Mapping[str, Any], case: str) -> dict[int, dict[int, Any]]:
    """Return the final cells of a case, by replicas and seed."""
    found: dict[int, dict[int, Any]] = {}
    for key, cell in cells.items():
        name, _, rest = key.partition("; ")
        if name == case:
            replicas, seed = rest.split("; ")
            found.setdefault(int(replicas), {})[int(seed)] = cell
    return {replicas: dict(sorted(found[replicas].items())) for replicas in sorted(found)}


def summary(cells: Mapping[str, Any], cases: Sequence[Case]) -> Document:
    """Return a row for each case and number of replicas, and its comparison with one replica by seed."""
    rows: list[Document] = []
    compared: list[Document] = []
    for case in cases:
        runs = finals(cells, case.name)
        rows += [_row(case, replicas, list(of.values())) for replicas, of in runs.items()]
        alone = runs.get(SYNCHRONOUS, {})
        for replicas, of in runs.items():
            pairs = [(of[seed]["test"], alone[seed]["test"]) for seed in of if seed in alone]
            if replicas != SYNCHRONOUS and pairs:
                compared.append({"case": case.name, "replicas": replicas, **paired(pairs)})
    return {"rows": rows, "compared": compared}


def _row(case: Case, replicas: int, runs: Sequence[Any]) -> Document:
    tests = [run["test"] for run in runs]
    return {
        "case": case.name,
        "replicas": replicas,
        "rule": f"{runs[0]['rule']} {runs[0]['rate']:g}",
        "staleness": rounded(mean(run["staleness"] for run in runs)),
        "test": rounded(mean(tests)),
        "deviation": rounded(stdev(tests)) if len(tests) > 1 else None,
        "least": min(tests),
        "greatest": max(tests),
        "validation": rounded(mean(run["validation"] for run in runs)),
        "seeds": len(tests),
        "bar": case.bar,
        "is_met": None if case.bar is None else mean(tests) >= case.bar,
    }


def paired(pairs: Sequence[tuple[float, float]]) -> Document:
    """Return the mean gain of the first of each pair in percentage points, its confidence interval over
    seeds, and the verdict. One pair has no interval."""
    points = [100 * (some - one) for some, one in pairs]
    middle, low, high = mean(points), None, None
    if len(points) > 1:
        half = float(student.ppf((1 + CONFIDENCE) / 2, len(points) - 1)) * stdev(points) / sqrt(len(points))
        low, high = rounded(middle - half), rounded(middle + half)
    return {
        "points": rounded(middle),
        "low": low,
        "high": high,
        "seeds": len(points),
        "asynchrony": _answer(low, high),
    }


def _answer(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return "too few seeds"
    if low > 0:
        return "helps"
    return "harms" if high < 0 else "no difference shown"
