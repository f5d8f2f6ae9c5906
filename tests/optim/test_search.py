"""Every line search: on lines with known answers, on bumps, on NaN, and without a minimum."""

from __future__ import annotations

from collections.abc import Callable
from math import cos, exp, inf, isfinite, nan, sin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotswold.optim import ApproximateWolfe, BunyipSearch, RoundedWolfe, Search, StrongWolfe
from cotswold.optim.search import Outcome, Start, Trial, TrialRequest

Line = Callable[[float], tuple[float, float]]
SEARCHES: dict[str, Search] = {
    "strong": StrongWolfe(),
    "strict": StrongWolfe(curvature=0.1),
    "approximate": ApproximateWolfe(),
    "rounded": RoundedWolfe(StrongWolfe(), ApproximateWolfe()),
    "bunyip": BunyipSearch(),
}
LINES: dict[str, Line] = {
    "parabola": lambda a: (a * a - 2 * a, 2 * a - 2),
    "far minimum": lambda a: ((a - 1e4) ** 2, 2 * (a - 1e4)),
    "near minimum": lambda a: ((a - 1e-4) ** 2, 2 * (a - 1e-4)),
    "quartic": lambda a: ((a - 3) ** 4, 4 * (a - 3) ** 3),
    "flat then wall": lambda a: (-a / (a * a + 2), (a * a - 2) / (a * a + 2) ** 2),
    "waves": lambda a: (0.2 * a * a - sin(3 * a), 0.4 * a - 3 * cos(3 * a)),
    "exponential": lambda a: (exp(min(a, 500.0)) - 4 * a, exp(min(a, 500.0)) - 4),
}


def search(kind: Search, line: Line, first: float) -> tuple[Outcome, list[TrialRequest]]:
    """Return the outcome of the search and its requests, at most 100."""
    value, slope = line(0.0)
    asking = kind.find_step(Start(value, slope, first))
    asked: list[TrialRequest] = []
    try:
        ask = next(asking)
        while len(asked) < 100:
            asked.append(ask)
            ask = asking.send(Trial(ask.step, *line(ask.step)))
    except StopIteration as stop:
        return stop.value, asked
    raise AssertionError("the search goes on for ever")


@pytest.mark.parametrize("first", [1e-3, 1.0, 300.0])
@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("kind", SEARCHES)
def test_a_search_finds_a_lower_step_that_meets_its_conditions(kind: str, line: str, first: float) -> None:
    demands, function = SEARCHES[kind], LINES[line]
    outcome, _ = search(demands, function, first)
    assert outcome.step is not None and outcome.step > 0
    (value, slope), (start, start_slope) = function(outcome.step), function(0.0)
    assert value < start
    if outcome.weak is None and not isinstance(demands, BunyipSearch):
        demands = demands.strong if isinstance(demands, RoundedWolfe) else demands
        assert isinstance(demands, StrongWolfe | ApproximateWolfe)
        assert abs(slope) <= -demands.curvature * start_slope
    if isinstance(demands, StrongWolfe):
        assert outcome.weak is None
        assert value <= start + demands.decrease * outcome.step * start_slope


@settings(max_examples=60)
@given(
    st.sampled_from(sorted(SEARCHES)),
    st.lists(st.floats(-3, 3), min_size=4, max_size=4),
    st.floats(0.01, 50),
)
def test_on_any_bumpy_line_that_rises_in_the_end_the_step_is_lower(
    kind: str, bumps: list[float], first: float
) -> None:
    def line(a: float) -> tuple[float, float]:
        value = 0.5 * a * a - 5 * a + sum(b * sin((i + 1) * a) for i, b in enumerate(bumps))
        slope = a - 5 + sum(b * (i + 1) * cos((i + 1) * a) for i, b in enumerate(bumps))
        return value, slope

    if line(0.0)[1] >= -1e-3:
        return
    outcome, asked = search(SEARCHES[kind], line, first)
    assert all(ask.step > 0 and isfinite(ask.step) for ask in asked)
    assert outcome.step is None or line(outcome.step)[0] < 0.0


@pytest.mark.parametrize("bad", [nan, inf])
@pytest.mark.parametrize("kind", SEARCHES)
def test_a_step_where_the_function_is_not_finite_is_too_long(kind: str, bad: float) -> None:
    def line(a: float) -> tuple[float, float]:
        return (a * a - 2 * a, 2 * a - 2) if a < 1.5 else (bad, bad)

    outcome, _ = search(SEARCHES[kind], line, 1e4)
    assert outcome.step is not None and 0 < outcome.step < 1.5


@pytest.mark.parametrize("kind", SEARCHES)
def test_where_every_step_goes_up_none_is_found_and_it_is_said(kind: str) -> None:
    def line(a: float) -> tuple[float, float]:
        return (0.0, -1.0) if a == 0 else (1.0 + a, 1.0)

    outcome, asked = search(SEARCHES[kind], line, 1.0)
    assert outcome.step is None and outcome.weak and len(asked) < 60


@pytest.mark.parametrize("kind", SEARCHES)
def test_a_line_that_goes_down_for_ever_ends_the_search_with_a_long_step(kind: str) -> None:
    outcome, asked = search(SEARCHES[kind], lambda a: (-a, -1.0), 1.0)
    assert outcome.weak and len(asked) < 60
    assert outcome.step is not None and outcome.step > 1e5


@pytest.mark.parametrize("kind", SEARCHES)
def test_a_function_that_is_nan_everywhere_but_at_the_start_ends_the_search(kind: str) -> None:
    outcome, asked = search(SEARCHES[kind], lambda a: (0.0, -1.0) if a == 0 else (nan, nan), 1.0)
    assert outcome.step is None and len(asked) < 60


def test_bunyips_search_asks_for_signs_on_part_and_for_all_patterns_once() -> None:
    outcome, asked = search(BunyipSearch(part=0.05), LINES["parabola"], 0.2)
    assert [ask.part for ask in asked] == [0.05, 0.05, 0.05, 0.05, None]
    assert [ask.step for ask in asked[:4]] == pytest.approx([0.2, 0.4, 0.8, 1.6])
    assert outcome.step == pytest.approx(1.0)  # the parabola through both ends is the line itself


def test_bunyips_search_goes_back_where_the_part_was_wrong() -> None:
    """The minimum of the part is at 8, that of all samples at 1."""
    asking = BunyipSearch().find_step(Start(0.0, -2.0, 4.0))
    ask, steps = next(asking), []
    for _ in range(3):
        steps.append(a := ask.step)
        ask = asking.send(Trial(a, a * a - 2 * a, 2 * a - 16 if ask.part else 2 * a - 2))
    assert [*steps, ask.step] == pytest.approx([4.0, 8.0, 8.0, 1.0])
    with pytest.raises(StopIteration) as stop:
        asking.send(Trial(ask.step, -1.0, 0.0))
    assert stop.value.value.step == pytest.approx(1.0) and "higher" in stop.value.value.weak


def test_bunyips_search_asks_for_all_patterns_where_the_part_has_no_lower_step() -> None:
    """By the part's slopes, the line rises at once."""
    asking = BunyipSearch().find_step(Start(1.0, -1.0, 1.0))
    ask = next(asking)
    parts: list[float | None] = []

    def answered(ask: TrialRequest) -> Trial:
        parts.append(ask.part)
        value = (ask.step - 1e-2) ** 2 + 0.9999 if ask.step > 1e-5 else 1.0  # smaller steps are rounded away
        return Trial(ask.step, value, 1.0 if ask.part else 2 * (ask.step - 1e-2))

    with pytest.raises(StopIteration) as stop:  # noqa: PT012  # a generator says its answer so
        while len(parts) < 100:
            ask = asking.send(answered(ask))
    assert stop.value.value.step == pytest.approx(1e-2, rel=0.01)
    assert "slopes on all were used" in stop.value.value.weak
    first = parts.index(None)
    assert 0.1 in parts[:first] and 0.1 not in parts[first:]


def test_the_approximate_conditions_accept_a_value_that_rounding_raised() -> None:
    def line(a: float) -> tuple[float, float]:  # the decrease, 1e-9, is lost in the rounding of 1
        return 1.0 + (1e-7 if a > 0 else 0.0), 1e-9 * (2 * a - 2)

    assert search(ApproximateWolfe(), line, 1.0)[0] == Outcome(1.0)
    assert search(StrongWolfe(), line, 1.0)[0].step is None
    assert search(SEARCHES["rounded"], line, 1.0) == (Outcome(1.0), [TrialRequest(1.0)])


def test_the_approximate_search_follows_where_rounding_hid_a_decrease_that_was_promised() -> None:
    def line(a: float) -> tuple[float, float]:  # the slope promises 1e-3, and 1e-9 is there
        return 1.0 + (1e-7 if a > 0 else 0.0), 1e-3 * (2e6 * a - 2) if a < 1e-6 else 1e-3 * (2 - 2e-6 / a)

    assert search(StrongWolfe(), line, 1.0)[0].step is None
    found = search(SEARCHES["rounded"], line, 1.0)[0].step
    assert found is not None and abs(line(found)[1]) <= 0.9 * 2e-3


@pytest.mark.parametrize("slope", [-1.0, -1e-2])
def test_a_decrease_that_can_be_seen_is_searched_by_values_and_strong_wolfe(slope: float) -> None:
    def line(a: float) -> tuple[float, float]:
        return 1.0 + slope * (a - a * a / 20), slope * (1 - a / 10)

    assert search(SEARCHES["rounded"], line, 0.1) == search(SEARCHES["strong"], line, 0.1)
    assert search(SEARCHES["rounded"], line, 0.1) != search(SEARCHES["approximate"], line, 0.1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: StrongWolfe(decrease=0.9, curvature=0.1),
        lambda: StrongWolfe(trials=0),
        lambda: ApproximateWolfe(decrease=0.6),
        lambda: ApproximateWolfe(growth=1.0),
        lambda: RoundedWolfe(StrongWolfe(), ApproximateWolfe(), visible=0.0),
        lambda: BunyipSearch(part=0.0),
        lambda: BunyipSearch(growth=1.0),
    ],
)
def test_settings_that_cannot_work_are_refused(make: Callable[[], Search]) -> None:
    with pytest.raises(ValueError, match=r"needs|must be"):
        make()
