from __future__ import annotations

import numpy as np
import pytest

from cotswold.cluster.arithmetic import Array, NumpyArithmetic
from cotswold.optim.updates import Adagrad, Deltas, Momentum, Rule, Sgd

RULES: list[Rule] = [Deltas(), Sgd(), Momentum(0.75), Adagrad(1e-8)]
DTYPES = ["float32", "float64"]


def _numbers(size: int, seed: int, dtype: str) -> Array:
    return np.random.default_rng(seed).normal(size=size).astype(dtype)


def _expected(rule: Rule, w: Array, kept: Array, rate: float, g: Array) -> tuple[Array, Array]:
    """The formulas of `optim.updates`, in float64."""
    match rule:
        case Deltas():
            return w + rate * g, kept
        case Sgd():
            return w - rate * g, kept
        case Momentum(momentum):
            v = momentum * kept - rate * g
            return w + v, v
        case Adagrad(epsilon):
            a = kept + g**2
            return w - rate * g / (np.sqrt(a) + epsilon), a


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("unit_norm", [False, True])
def test_rules_are_applied_as_they_are_defined(rule: Rule, dtype: str, unit_norm: bool) -> None:
    rows, columns = 13, 77
    weights, kept = _numbers(rows * columns, 0, dtype), [np.zeros(rows * columns, dtype) for _ in rule.keeps]
    w, beside = weights.astype(np.float64), np.zeros(rows * columns)
    pushes = [(0.5 / (1 + seed), _numbers(rows * columns, 1 + seed, dtype)) for seed in range(5)]
    for rate, values in pushes:
        w, beside = _expected(rule, w, beside, rate, values.astype(np.float64))
    if unit_norm:
        w = (w.reshape(rows, columns) / np.linalg.norm(w.reshape(rows, columns), axis=1)[:, None]).reshape(-1)
    NumpyArithmetic(dtype).apply(rule, weights, kept, pushes, columns, unit_norm)
    close = 2e-5 if dtype == "float32" else 1e-13
    np.testing.assert_allclose(weights, w, rtol=close, atol=close)
    for one in kept:
        np.testing.assert_allclose(one, beside, rtol=close, atol=close)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_pushes_at_once_give_the_bits_of_one_after_the_other(rule: Rule) -> None:
    arithmetic, size = NumpyArithmetic("float32"), 5003
    together, apart = _numbers(size, 0, "float32"), _numbers(size, 0, "float32")
    kept_together, kept_apart = ([np.zeros(size, np.float32) for _ in rule.keeps] for _ in range(2))
    pushes = [(0.1 * seed, _numbers(size, seed, "float32")) for seed in range(1, 8)]
    arithmetic.apply(rule, together, kept_together, pushes, 1, False)
    for push in pushes:
        arithmetic.apply(rule, apart, kept_apart, [push], 1, False)
    assert together.tobytes() == apart.tobytes()
    assert [one.tobytes() for one in kept_together] == [one.tobytes() for one in kept_apart]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_of_factors_is_flat_and_row_major(dtype: str) -> None:
    errors, activations = _numbers(6 * 5, 0, dtype), _numbers(6 * 7, 1, dtype)
    found = NumpyArithmetic(dtype).product(errors, activations, 6)
    assert found.shape == (35,) and found.dtype == dtype
    np.testing.assert_allclose(
        found, (errors.reshape(6, 5).T @ activations.reshape(6, 7)).reshape(-1), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(("errors", "activations", "examples"), [(6, 6, 0), (7, 6, 3), (6, 7, 3)])
def test_factors_that_are_not_of_so_many_examples_are_refused(
    errors: int, activations: int, examples: int
) -> None:
    with pytest.raises(ValueError, match="examples"):
        NumpyArithmetic("float32").product(
            np.ones(errors, np.float32), np.ones(activations, np.float32), examples
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 1003])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_number_that_is_not_finite_is_found(dtype: str, size: int, value: float) -> None:
    arithmetic, numbers = NumpyArithmetic(dtype), _numbers(size, 0, dtype)
    assert arithmetic.is_finite(numbers)
    numbers[size // 2] = value
    assert not arithmetic.is_finite(numbers)


def test_numbers_whose_squares_float64_holds_are_finite_and_others_are_not() -> None:
    assert NumpyArithmetic("float32").is_finite(np.full(5, 1e30, np.float32))
    assert not NumpyArithmetic("float64").is_finite(np.full(5, 1e200))
