"""Prepared jobs are kept, by geometry and up to a limit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support.kernels.operations import operands, processors, run, same_bits
from tests.support.ops.layers import WIDE

from cotswold import ops
from cotswold.geometry import BlockLocal, MapShape, Smoothing, StackGeometry, Window
from cotswold.kernels.compile import jobs
from cotswold.kernels.machine.execution import LruCache, PreparedKernel
from cotswold.kernels.products import run as kernels
from cotswold.kernels.products.prepare import PreparedProduct
from cotswold.kernels.products.problem import Problem

pytestmark = pytest.mark.skipif(not processors(), reason="kernels have no code for this processor")


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of images of each prepared product."""
    found: list[int] = []
    usual = kernels._prepare

    def noted(problem: Problem, *rest: object) -> tuple[PreparedProduct, bool]:
        found.append(problem.images)
        return usual(problem, *rest)  # type: ignore[arg-type]  # handed on

    monkeypatch.setattr(kernels, "_prepare", noted)
    return found


@pytest.mark.parametrize("operation", ["product", "adjoint", "outer"])
def test_a_product_is_prepared_once_for_a_batch_size_a_type_and_strides(
    operation: str, prepared: list[int]
) -> None:
    first = operands(operation, WIDE, 20, torch.float32)
    expected = run(operation, WIDE, first)
    other = operands(operation, WIDE, 20, torch.float32, seed=7)
    assert not same_bits(run(operation, WIDE, other), expected)
    assert same_bits(run(operation, WIDE, first), expected)
    assert prepared == [20]
    run(operation, WIDE, operands(operation, WIDE, 21, torch.float32))
    run(operation, WIDE, operands(operation, WIDE, 20, torch.float64))
    assert prepared == [20, 21, 20]
    large, second = operands(operation, WIDE, 24, torch.float32)
    part = large[:20], second[:20] if operation == "outer" else second
    run(operation, WIDE, part)
    assert prepared == [20, 21, 20, 20]


def test_a_product_is_prepared_anew_for_another_number_of_threads(prepared: list[int]) -> None:
    pair, before = operands("product", WIDE, 20, torch.float32), torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 1):
            torch.set_num_threads(count)
            results.append(run("product", WIDE, pair))
    finally:
        torch.set_num_threads(before)
    assert prepared == [20, 20]
    assert same_bits(results[0], results[1]) and same_bits(results[0], results[2])


def test_the_second_step_of_a_stack_prepares_nothing(prepared: list[int]) -> None:
    layer = BlockLocal(MapShape(3, 12, 12), Window(5), Window(5), 1, 1, 6)
    geometry = StackGeometry(layer, Smoothing(3), Smoothing(3, keep=True))
    filters = ops.random_filters(layer, 0, 0)
    one = torch.ones((), dtype=torch.float64)
    state = ops.StackState(filters, ops.filter_norms(filters), torch.zeros_like(filters), one, one.clone())
    above = torch.randn(20, 6, 6, 6)

    def step() -> None:
        ops.stack_step(
            state,
            torch.randn(20, 3, 12, 12),
            geometry,
            ops.StackObjective(),
            ops.StepRule(2.0),
            upstream=above,
            input_gradient=True,
        )

    step()
    products, passes = list(prepared), set(jobs.READY)
    assert products and passes
    step()
    assert prepared == products and set(jobs.READY) == passes


def test_of_what_was_prepared_the_last_used_are_kept() -> None:
    kept: LruCache[int, str] = LruCache(3)
    for number in range(5):
        assert kept.put(number, lambda number=number: str(number)) == str(number)  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        assert kept.find(0) == "0"
    assert dict(kept) == {0: "0", 3: "3", 4: "4"}
    assert kept.find(2) is None


def test_of_large_tables_only_as_many_are_kept_as_fit() -> None:
    kept: LruCache[int, np.ndarray] = LruCache(100, 3000)
    for number in range(5):
        kept.put(number, lambda: np.zeros(1000, np.uint8))
    assert list(kept) == [2, 3, 4]
    kept.put(5, lambda: np.zeros(10_000, np.uint8))  # too large, but in use
    assert list(kept) == [5]
    large = PreparedKernel(0, np.zeros(8, np.int64), (), 0, 0, 1, keepalive=(np.zeros(900), np.zeros(100)))
    assert large.nbytes == 8 * (8 + 1000)
