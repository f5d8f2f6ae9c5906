from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cotswold.analysis.selectivity.histogram import GROUPS, GroupAssignment, Histogram, ResponseRanges


def counted(responses: torch.Tensor, thresholds: int, batch: int, threads: int = 1) -> Histogram:
    ranges = ResponseRanges()
    ranges.add(responses)
    histogram, assignment = Histogram(*ranges.bounds(), thresholds, threads), GroupAssignment()
    for start in range(0, responses.shape[1], batch):
        part = responses[:, start : start + batch]
        histogram.add(part, assignment.assign(torch.ones(part.shape[1])))
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
    histogram.add(torch.tensor([[1 - 2**-20] * 3, [1 + 2**-18] * 3]), np.array([8, 9, 10], np.int32))
    assert histogram.counts()[1].sum(-1).T.tolist() == [[0] * 19, [3] * 19]


def test_no_number_of_threads_and_no_batch_changes_a_count() -> None:
    responses = torch.randn(3000, 300, generator=torch.Generator().manual_seed(0))
    one = counted(responses, 20, 300, threads=1).counts()
    many = counted(responses, 20, 37, threads=4).counts()
    assert np.array_equal(one.sum(-1), many.sum(-1))


def test_images_are_dealt_out_evenly_to_the_groups_however_small_the_batches() -> None:
    assignment = GroupAssignment()
    slots = np.concatenate([assignment.assign(torch.arange(3) != number % 3) for number in range(43)])
    assert assignment.images.sum(1).tolist() == [43, 86]
    assert np.ptp(assignment.images, axis=1).tolist() == [1, 1]
    assert np.bincount(slots, minlength=2 * GROUPS).reshape(2, GROUPS).tolist() == assignment.images.tolist()


def test_each_response_counts_for_the_class_and_the_group_of_its_image() -> None:
    histogram = Histogram(np.zeros(1, np.float32), np.full(1, 3, np.float32), 4)
    histogram.add(torch.arange(19.0)[None] % 4, np.arange(19, dtype=np.int32) % 16)
    expected = np.zeros((2, 3, 1, GROUPS), int)
    for image in range(19):
        for threshold in range(1, image % 4 + 1):
            expected[image % 16 // 8, threshold - 1, 0, image % 8] += 1
    assert histogram.counts().tolist() == expected.tolist()


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
def test_a_number_of_thresholds_out_of_range_is_refused(thresholds: int) -> None:
    with pytest.raises(ValueError, match="thresholds"):
        Histogram(np.zeros(1, np.float32), np.ones(1, np.float32), thresholds)


@pytest.mark.parametrize("backend", ["torch", "llvm"])
def test_counts_are_the_same_with_and_without_kernels(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTSWOLD_KERNELS", backend)
    responses = torch.randint(-8, 9, (70, 61), generator=torch.Generator().manual_seed(1)) / 4
    assert counted(responses, 9, 17).counts()[1].sum(-1).tolist() == reached_exactly(responses, 9)
