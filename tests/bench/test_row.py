import json
from typing import Any

import pytest

from cotswold.bench.measure import Spread
from cotswold.bench.row import COTSWOLD, Ceiling, Comparison, RowKey, compare_with_best_baseline, timed


@pytest.mark.parametrize(("median", "sense", "met"), [(0.9, "at least", True), (0.89, "at least", False)])
def test_a_bar_is_met_by_the_median_and_by_no_less(median: float, sense: Any, met: bool) -> None:
    assert Comparison("x", Spread(0.1, 0.1, median, 2, 2), 0.9, sense).meets_bar is met


@pytest.mark.parametrize(("median", "met"), [(0.1, True), (0.11, False)])
def test_a_limit_is_met_from_below(median: float, met: bool) -> None:
    assert Comparison("x", Spread(0, 0, median, 9, 9), 0.1, "at most").meets_bar is met


def test_without_a_bar_nothing_is_judged() -> None:
    assert Comparison("x", Spread.from_samples([1.0])).meets_bar is None


def test_the_share_of_a_ceiling_is_taken_round_by_round() -> None:
    # the machine is twice as slow in the second round, for both
    ceiling = Ceiling("oneDNN", 100.0, [1.0, 2.0])
    verdict = ceiling.compare(30.0, [0.5, 1.0], 0.6)
    assert verdict.ratio == Spread.from_samples([0.6, 0.6]) and verdict.meets_bar


def test_ours_is_compared_with_the_better_baseline() -> None:
    samples = {COTSWOLD: [1.0, 1.0], "slow": [9.0, 9.0], "fast": [3.0, 5.0]}
    (verdict,) = compare_with_best_baseline(samples, 4.0)
    assert (
        verdict.against == "fast" and verdict.ratio == Spread.from_samples([3.0, 5.0]) and verdict.meets_bar
    )


def test_a_baseline_that_ran_once_stands_for_every_round() -> None:
    (verdict,) = compare_with_best_baseline({COTSWOLD: [1.0, 2.0], "once": [8.0]}, 4.0)
    assert verdict.ratio == Spread.from_samples([8.0, 4.0])


def test_without_baselines_there_is_no_verdict() -> None:
    assert compare_with_best_baseline({COTSWOLD: [1.0]}, 4.0) == []


def test_a_row_holds_rates_samples_and_verdicts_as_json() -> None:
    samples = {COTSWOLD: [0.5, 1.0], "baseline": [2.0, 2.0]}
    row = timed(
        RowKey("untied", "3 x 3", "forward", 4), 2e9, samples, compare_with_best_baseline(samples, 4.0)
    )
    told: Any = json.loads(json.dumps(row.as_dict()))
    assert told["figures"][COTSWOLD]["greatest"] == 4.0 and told["seconds"] == samples
    assert told["verdicts"][0] | {"ratio": None} == {
        "against": "baseline",
        "ratio": None,
        "sense": "at least",
        "bar": 4.0,
        "met": False,
    }
    assert told["facts"]["work"] == 2e9
