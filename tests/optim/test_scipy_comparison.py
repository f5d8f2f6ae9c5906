"""Every method on problems of the table, compared with SciPy: the quick version of
benchmarks/optimisers.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from lib.optimisers.problems import Problem, problems
from lib.optimisers.single import single_problems, singles
from lib.optimisers.table import RIVALS, Row, compared, faults, methods

PROBLEMS = {problem.name: problem for problem in problems()}
QUICK = ["Beale", "Broyden, 30", "logistic, 20 features"]


def table(problem: Problem, names: list[str], starts: int) -> list[Row]:
    minimisers = {name: minimiser for name, minimiser in methods().items() if name in names}
    return compared(problem, minimisers, starts, lambda line: None)


@pytest.mark.parametrize("name", QUICK)
def test_every_method_reaches_the_minimum(name: str) -> None:
    rows = table(PROBLEMS[name], list(methods()), 1)
    assert len(rows) == 16
    assert faults([replace(row, ratio=None) for row in rows]) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Rosenbrock, 10", "Powell, 12", "network 2-16-1, squares"])
@pytest.mark.parametrize(("own", "rival"), RIVALS.items())
def test_ours_takes_no_more_evaluations_than_scipys(name: str, own: str, rival: str) -> None:
    assert faults(table(PROBLEMS[name], [own, rival], 3)) == []


def test_the_table_finds_a_method_that_is_slower_or_ends_elsewhere() -> None:
    rows = table(PROBLEMS["Beale"], ["SciPy L-BFGS-B", "L-BFGS, strong Wolfe"], 1)
    (own,) = (row for row in rows if row.ratio is not None)
    assert own.ratio == 1.0
    wrong = [
        replace(own, ratio=1.4, allowed=1.3),
        replace(own, lowest=[0.1]),
        replace(own, evaluations=[None]),
    ]
    assert [len(faults([rows[0], each])) for each in wrong] == [1, 1, 1]


@pytest.mark.soak
def test_in_float32_slopes_find_what_strong_wolfe_alone_cannot_see() -> None:
    (problem,) = [each for each in single_problems() if each.name.startswith("breast cancer")]
    left = {(row.method, row.search): row.excess for row in singles(problem, 1, lambda line: None)}
    for method in ("L-BFGS", "conjugate gradient"):
        assert left[method, "RoundedWolfe"] < 1e-12 < 1e-9 < left[method, "strong Wolfe"]
