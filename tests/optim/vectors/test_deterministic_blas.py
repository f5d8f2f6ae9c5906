"""Arithmetic in memory: right, and the same bits for any placement of the numbers and any number of
threads.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cotswold.optim import axpby, dot


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("size", [0, 1, 511, 65536, 70001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_dot_is_the_sum_of_products_in_float64(size: int, dtype: torch.dtype) -> None:
    a, b = torch.randn(2, size, generator=torch.Generator().manual_seed(size)).to(dtype)
    assert dot(a, b) == pytest.approx(float((a.double() * b.double()).sum()), rel=1e-12, abs=1e-9)


def test_a_dot_has_the_same_bits_for_any_threads_and_any_place_in_memory() -> None:
    a, b = torch.randn(2, 150_001, generator=torch.Generator().manual_seed(0))
    found = set()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for shift in (0, 1, 3):
            room = torch.empty(150_010)
            room[shift : shift + len(a)] = a
            found.add(dot(room[shift : shift + len(a)], b))
    assert len(found) == 1


@settings(max_examples=30)
@given(st.integers(1, 5000), st.integers(0, 5000), st.integers(0, 10**6))
def test_a_sum_has_the_same_bits_however_it_is_cut(size: int, cut: int, seed: int) -> None:
    a, b, c = torch.randn(3, size, generator=torch.Generator().manual_seed(seed))
    whole, cuts = torch.empty(size), torch.empty(size)
    factors = (1.0, 0.3, -1.0)
    axpby(whole, list(zip(factors, (a, b, c), strict=True)))
    for part in (slice(0, cut), slice(cut, size)):
        axpby(cuts[part], [(factor, each[part]) for factor, each in zip(factors, (a, b, c), strict=True)])
    assert torch.equal(whole, cuts)
    assert torch.allclose(whole, a + 0.3 * b - c, atol=1e-6)


def test_what_is_written_may_be_among_what_is_read() -> None:
    x, d = torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])
    axpby(x, [(1.0, d), (0.5, x), (2.0, x)])
    assert x.tolist() == [12.5, 25.0]


def test_no_terms_make_zeros_even_of_nan() -> None:
    x = torch.tensor([float("nan")])
    axpby(x, [])
    assert x.tolist() == [0.0]
