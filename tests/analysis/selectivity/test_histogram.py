from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cotswold.analysis.selectivity.histogram import GROUPS, Histogram, ResponseRanges


def counted(responses: torch.Tensor, thresholds: int, batch: int, threads: int = 1) -> Histogram:
    ranges = ResponseRanges()
    ranges.add(responses)
    histogram = Histogram(*ranges.bounds(), thresholds, threads)
    for start in range(0, responses.shape[1], batch):
        histogram.add(responses[:, start : start + batch], positive=True)
    return histogram


def reached_exactly(responses: torch.Tensor, thresholds: int) -> list[list[int]]:
    """Return counts in rational arithmetic, (threshold, neuron), without the lowest threshold."""
    rows = [[Fraction(value) for value in row] for row in responses.tolist()]
    ends = [(min(row), max(row)) for row in rows]
    return [
        [
            sum((thresholds - 1) * (r - low) >= k * (high - low) > 0 for r in row)
            for row, (low, high) in zip(rows, ends, strict=True)
        ]
        for k in range(1, thresholds)
    ]


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.integers(-40, 40), min_size=3, max_size=60),
    shift=st.sampled_from([0.0, 1e4, -3.3]),
    scale=st.sampled_from([1.0, 1 / 3, 1e-4]),
    thresholds=st.sampled_from([2, 5, 20]),
    batch=st.integers(1, 23),
)
def test_counts_are_exact_even_where_responses_lie_on_thresholds(
    values: list[int], shift: float, scale: float, thresholds: int, batch: int
) -> None:
    responses = torch.tensor([values, values[::-1]], dtype=torch.float32) * scale + shift
    counts = counted(responses, thresholds, batch).counts()[1].sum(-1)
    assert counts.tolist() == reached_exactly(responses, thresholds)


def test_a_response_that_rounding_moved_out_of_the_range_counts_as_the_nearer_end() -> None:
    histogram = Histogram(np.ones(2, np.float32), np.full(2, 1 + 2**-23, np.float32), 20)
    histogram.add(torch.tensor([[1 - 2**-20] * 3, [1 + 2**-18] * 3]), positive=True)
    assert histogram.counts()[1].sum(-1).T.tolist() == [[0] * 19, [3] * 19]


def test_no_number_of_threads_and_no_batch_changes_a_count() -> None:
    responses = torch.randn(3000, 300, generator=torch.Generator().manual_seed(0))
    one = counted(responses, 20, 300, threads=1).counts()
    many = counted(responses, 20, 37, threads=4).counts()
    assert np.array_equal(one.sum(-1), many.sum(-1))


def test_byte_lanes_do_not_overflow_after_thousands_of_images() -> None:
    responses = torch.rand(2, 5000, generator=torch.Generator().manual_seed(0))
    histogram = counted(responses, 20, 5000)
    assert histogram.counts()[1].sum(-1).tolist() == reached_exactly(responses, 20)
    assert histogram.counts().max() > 255


def test_images_are_dealt_out_evenly_to_the_groups_however_small_the_batches() -> None:
    responses = torch.rand(1, 43)
    histogram = counted(responses, 4, 3)
    assert histogram.images[1].sum() == 43
    assert np.ptp(histogram.images[1]) == 1
    assert len(histogram.images[1]) == GROUPS


def test_responses_with_a_pitch_between_neurons_are_read_in_place() -> None:
    wide = torch.randn(20, 64)
    assert np.array_equal(
        counted(wide[:, 8:40], 20, 32).counts(), counted(wide[:, 8:40].clone(), 20, 32).counts()
    )


def test_a_range_that_is_not_finite_is_found_with_its_row() -> None:
    ranges = ResponseRanges()
    ranges.add(torch.tensor([[0.0, 1.0], [0.0, float("nan")]]))
    found = ranges.find_nonfinite()
    assert found is not None
    assert found[0] == 1


@pytest.mark.parametrize("thresholds", [1, 257])
def test_a_number_of_thresholds_that_a_byte_cannot_count_is_refused(thresholds: int) -> None:
    with pytest.raises(ValueError, match="thresholds"):
        Histogram(np.zeros(1, np.float32), np.ones(1, np.float32), thresholds)
