"""The rate over a run rises, then stays or falls, and never stops early."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotswold.optim import Schedule, rate_at
from cotswold.optim.schedule import SampleSchedule

KINDS: list[Schedule] = list(get_args(Schedule))


def rates(steps: int, schedule: Schedule, warmup: float) -> list[float]:
    return [rate_at(step, steps, 0.5, schedule, warmup) for step in range(steps)]


def test_a_constant_rate_is_the_rate_at_every_step() -> None:
    assert rates(5, "constant", 0.0) == [0.5] * 5


def test_a_linear_rate_falls_by_equal_amounts() -> None:
    assert rates(5, "linear", 0.0) == pytest.approx([0.5, 0.4, 0.3, 0.2, 0.1])


def test_a_cosine_falls_slowly_then_fast_then_slowly() -> None:
    assert rates(4, "cosine", 0.0) == pytest.approx([0.5, 0.4267767, 0.25, 0.0732233])


def test_the_rate_rises_in_equal_steps_over_the_warm_up() -> None:
    assert rates(8, "constant", 0.5) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5, 0.5])


def test_the_fall_begins_from_the_full_rate_where_the_warm_up_ends() -> None:
    assert rates(6, "linear", 0.34) == pytest.approx([0.5 / 3, 1 / 3, 0.5, 0.375, 0.25, 0.125])


@given(st.integers(1, 300), st.sampled_from(KINDS), st.floats(0, 1, exclude_max=True))
def test_every_step_has_a_rate_above_nothing_and_at_most_the_rate(
    steps: int, schedule: Schedule, warmup: float
) -> None:
    assert all(0 < rate <= 0.5 for rate in rates(steps, schedule, warmup))


@given(st.integers(1, 300), st.sampled_from(KINDS), st.floats(0, 1, exclude_max=True))
def test_the_rate_rises_to_one_summit_and_never_again(steps: int, schedule: Schedule, warmup: float) -> None:
    values = rates(steps, schedule, warmup)
    summit = values.index(max(values))
    assert values[: summit + 1] == sorted(values[: summit + 1])
    assert values[summit:] == sorted(values[summit:], reverse=True)


def test_the_last_of_very_many_cosine_steps_still_moves() -> None:
    assert rate_at(10**9 - 1, 10**9, 0.5, "cosine", 0.0) > 0


@pytest.mark.parametrize("step", [-1, 10])
def test_a_step_outside_the_run_is_refused(step: int) -> None:
    with pytest.raises(ValueError, match="must be from 0 to 9, got"):
        rate_at(step, 10, 0.5, "cosine", 0.0)


def test_an_unknown_schedule_is_refused() -> None:
    with pytest.raises(ValueError, match=r"schedule must be .* got 'step'"):
        rate_at(0, 10, 0.5, "step", 0.0)  # type: ignore[arg-type]  # what a caller without types might write


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("samples", [12, 13])
def test_steps_that_follow_each_other_have_their_rates_by_samples(schedule: Schedule, samples: int) -> None:
    found = SampleSchedule(schedule, 0.3, samples, batch=4, epochs=3)
    places = [epoch * samples + first for epoch in range(3) for first in range(0, samples, 4)]
    assert [found.rate(0.5, place) for place in places] == rates(len(places), schedule, 0.3)
    assert found.rate(0.5, 10**9) == found.rate(0.5, places[-1])
    assert found.rate(0.5, -1) == found.rate(0.5, 0)
