"""Assignment of samples: a seeded permutation, portions, random cycles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotswold.shards.core.permutation import (
    Permutation,
    PortionPermutation,
    format_ranges,
    parse_ranges,
    samples_at,
)


@given(seed=st.integers(-(2**70), 2**70), count=st.integers(0, 700))
def test_every_number_stands_at_one_place(seed: int, count: int) -> None:
    assert sorted(Permutation(seed, count).stretch(0, count)) == list(range(count))


def test_each_epoch_deals_all_samples_anew_however_they_are_cut() -> None:
    epochs = [list(samples_at(1, 50, 50 * epoch, 50 * epoch + 50)) for epoch in range(3)]
    assert all(sorted(each) == list(range(50)) for each in epochs)
    assert len({tuple(each) for each in epochs}) == 3
    assert [*samples_at(1, 50, 50, 61), *samples_at(1, 50, 61, 100)] == epochs[1]


@given(seed=st.integers(0, 99), count=st.integers(1, 10**12), place=st.integers(0, 10**12))
def test_a_place_of_billions_is_found_without_the_others(seed: int, count: int, place: int) -> None:
    if place < count:
        assert 0 <= Permutation(seed, count)[place] < count


def test_seeds_give_all_orders_equally_often() -> None:
    orders = [tuple(Permutation(seed, 3).stretch(0, 3)) for seed in range(6000)]
    assert len(set(orders)) == 6
    assert all(850 < orders.count(each) < 1150 for each in set(orders))  # 1000 ± 5 standard deviations


def test_a_place_outside_of_the_order_is_an_error() -> None:
    with pytest.raises(IndexError, match="positions 5 to 6"):
        Permutation(1, 5)[5]


@given(samples=st.integers(1, 400), portion=st.integers(1, 50), seed=st.integers(0, 9))
def test_portions_have_every_pattern_once(samples: int, portion: int, seed: int) -> None:
    dealing = PortionPermutation(seed, samples, portion)
    dealt = [list(dealing.samples_of(each)) for each in range(dealing.portions)]
    assert sorted(sample for each in dealt for sample in each) == list(range(samples))
    assert [len(each) for each in dealt] == [dealing.size_of(each) for each in range(dealing.portions)]


@given(st.integers(1, 300), st.integers(1, 20), st.floats(0.01, 1), st.integers(0, 5))
def test_a_cycle_draws_its_fraction_and_not_a_portion_more(
    samples: int, portion: int, fraction: float, cycle: int
) -> None:
    dealing = PortionPermutation(3, samples, portion)
    drawn = dealing.draw(cycle, fraction)
    sizes = [dealing.size_of(each) for each in drawn]
    assert list(drawn) == sorted(set(drawn))
    assert sum(sizes) >= fraction * samples > sum(sizes) - portion


def test_all_patterns_are_drawn_equally_often() -> None:
    dealing = PortionPermutation(1, 40, 1)
    counts = [0] * 40
    for cycle in range(2000):
        for portion in dealing.draw(cycle, 0.5):
            counts[portion] += 1
    assert all(880 < each < 1120 for each in counts)  # 1000 ± 5 standard deviations


@pytest.mark.parametrize("fraction", [0.0, -1.0, 1.01, float("nan")])
def test_a_fraction_that_is_none_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match="fraction"):
        PortionPermutation(1, 10, 1).draw(0, fraction)


@given(st.sets(st.integers(0, 60)))
def test_portions_as_words_are_read_back(portions: set[int]) -> None:
    assert parse_ranges(format_ranges(sorted(portions))) == tuple(sorted(portions))


def test_words_that_do_not_ascend_are_refused() -> None:
    with pytest.raises(ValueError, match="ascend"):
        parse_ranges("4,2")
