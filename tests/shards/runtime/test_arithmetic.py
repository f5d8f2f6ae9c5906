from __future__ import annotations

import numpy as np
import pytest

from cotswold.optim.server_rules import Adagrad, AddUpdate, Momentum, Rule, Sgd
from cotswold.shards.core.admission import ReceivedFactors, ShardUpdates
from cotswold.shards.runtime.arithmetic import Array, NumpyArithmetic

RULES: list[Rule] = [AddUpdate(), Sgd(), Momentum(0.75), Adagrad(1e-8)]
DTYPES = ["float32", "float64"]


def _is_finite(arithmetic: NumpyArithmetic, *pushed: Array | ReceivedFactors[Array]) -> bool:
    return arithmetic.first_not_finite(pushed) is None


def _numbers(size: int, seed: int, dtype: str) -> Array:
    return np.random.default_rng(seed).normal(size=size).astype(dtype)


def _expected(rule: Rule, w: Array, kept: Array, rate: float, g: Array) -> tuple[Array, Array]:
    """Return the formulas of `optim.server_rules`, in float64."""
    match rule:
        case AddUpdate():
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
    weights, kept = (
        _numbers(rows * columns, 0, dtype),
        [np.zeros(rows * columns, dtype) for _ in rule.state_names],
    )
    w, beside = weights.astype(np.float64), np.zeros(rows * columns)
    pushes = [(0.5 / (1 + seed), _numbers(rows * columns, 1 + seed, dtype)) for seed in range(5)]
    for rate, values in pushes:
        w, beside = _expected(rule, w, beside, rate, values.astype(np.float64))
    if unit_norm:
        w = (w.reshape(rows, columns) / np.linalg.norm(w.reshape(rows, columns), axis=1)[:, None]).reshape(-1)
    NumpyArithmetic(dtype).apply(rule, [ShardUpdates(weights, kept, pushes, columns, unit_norm)])
    close = 2e-5 if dtype == "float32" else 1e-13
    np.testing.assert_allclose(weights, w, rtol=close, atol=close)
    for one in kept:
        np.testing.assert_allclose(one, beside, rtol=close, atol=close)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_pushes_at_once_give_the_bits_of_one_after_the_other(rule: Rule) -> None:
    arithmetic, size = NumpyArithmetic("float32"), 5003
    together, apart = _numbers(size, 0, "float32"), _numbers(size, 0, "float32")
    kept_together, kept_apart = ([np.zeros(size, np.float32) for _ in rule.state_names] for _ in range(2))
    pushes = [(0.1 * seed, _numbers(size, seed, "float32")) for seed in range(1, 8)]
    arithmetic.apply(rule, [ShardUpdates(together, kept_together, pushes, 1, False)])
    for push in pushes:
        arithmetic.apply(rule, [ShardUpdates(apart, kept_apart, [push], 1, False)])
    assert together.tobytes() == apart.tobytes()
    assert [one.tobytes() for one in kept_together] == [one.tobytes() for one in kept_apart]


@pytest.mark.parametrize("rule", RULES[1:], ids=lambda rule: rule.name)
@pytest.mark.parametrize("unit_norm", [False, True])
def test_factors_among_gradients_are_applied_in_their_place(rule: Rule, unit_norm: bool) -> None:
    arithmetic, rows, columns = NumpyArithmetic("float64"), 5, 7
    pushes: list[tuple[float, Array | ReceivedFactors[Array]]] = []
    plain: list[tuple[float, Array | ReceivedFactors[Array]]] = []
    for seed, examples in enumerate((0, 6, 1, 0, 0, 300)):
        errors, seen = (_numbers(max(1, examples) * n, seed, "float64") for n in (rows, columns))
        product = (errors.reshape(-1, rows).T @ seen.reshape(-1, columns)).reshape(-1)
        plain.append((0.1 * (1 + seed), product))
        pushes.append((0.1 * (1 + seed), ReceivedFactors(errors, seen, examples) if examples else product))
    found, expected = (_numbers(rows * columns, 9, "float64") for _ in range(2))
    kept, beside = ([np.zeros(rows * columns) for _ in rule.state_names] for _ in range(2))
    arithmetic.apply(rule, [ShardUpdates(found, kept, pushes, columns, unit_norm)])
    arithmetic.apply(rule, [ShardUpdates(expected, beside, plain, columns, unit_norm)])
    np.testing.assert_allclose([found, *kept], [expected, *beside], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("rule", RULES[1:], ids=lambda rule: rule.name)
@pytest.mark.parametrize("kernels", ["llvm", "torch"])
def test_many_shards_at_once_are_as_each_alone(
    rule: Rule, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTSWOLD_KERNELS", kernels)
    arithmetic, columns = NumpyArithmetic("float32"), 7

    def passes() -> list[ShardUpdates[Array]]:
        found = []
        for number, rows in enumerate((1, 40, 3, 5, 2)):
            size = rows * columns
            pushes: list[tuple[float, Array | ReceivedFactors[Array]]] = [
                (0.1 * (1 + each), _numbers(size, 10 * number + each, "float32")) for each in range(number)
            ]
            errors, seen = _numbers(2 * rows, 90 + number, "float32"), _numbers(2 * columns, 91, "float32")
            if number in (0, 3):
                pushes.insert(number - 1, (0.2, ReceivedFactors(errors, seen, 2)))
            kept = [np.zeros(size, np.float32) for _ in rule.state_names]
            found.append(
                ShardUpdates(_numbers(size, number, "float32"), kept, pushes, columns, number % 2 == 0)
            )
        return found

    together, apart = passes(), passes()
    arithmetic.apply(rule, together)
    for one in apart:
        arithmetic.apply(rule, [one])
    for one, other in zip(together, apart, strict=True):
        assert one.weights.tobytes() == other.weights.tobytes()
        assert [each.tobytes() for each in one.state_vectors] == [
            each.tobytes() for each in other.state_vectors
        ]


def test_a_push_may_be_only_to_be_read_and_must_be_contiguous() -> None:
    arithmetic, weights, push = NumpyArithmetic("float32"), np.zeros(4, np.float32), np.ones(4, np.float32)
    push.flags.writeable = False
    arithmetic.apply(Sgd(), [ShardUpdates(weights, [], [(0.5, push)], 1)])
    assert weights.tolist() == [-0.5] * 4
    with pytest.raises(ValueError, match="not contiguous"):
        arithmetic.apply(Sgd(), [ShardUpdates(weights, [], [(0.5, np.ones(8, np.float32)[::2])], 1)])
    assert weights.tolist() == [-0.5] * 4


def test_one_vector_of_another_length_or_type_among_many_shards_changes_nothing() -> None:
    arithmetic = NumpyArithmetic("float32")
    first, second = np.zeros(4, np.float32), np.zeros(6, np.float32)
    for wrong in (np.ones(5, np.float32), np.ones(6)):
        good: ShardUpdates[Array] = ShardUpdates(first, [], [(1.0, np.ones(4, np.float32))], 1)
        bad: ShardUpdates[Array] = ShardUpdates(second, [], [(1.0, wrong)], 1)
        with pytest.raises(ValueError, match="but the shard 6 of float32"):
            arithmetic.apply(Sgd(), [good, bad])
        assert not first.any() and not second.any()


def test_factors_are_finite_where_no_number_of_their_product_can_overflow() -> None:
    arithmetic, ones = NumpyArithmetic("float32"), np.ones(6, np.float32)
    assert _is_finite(arithmetic, ReceivedFactors(ones, ones * np.float32(1e15), 2))
    assert not _is_finite(arithmetic, ReceivedFactors(ones * np.float32(1e15), ones * np.float32(1e15), 2))
    for value in (np.nan, np.inf):
        broken = ones.copy()
        broken[3] = value
        assert not _is_finite(arithmetic, ReceivedFactors(broken, ones, 2))
        assert not _is_finite(arithmetic, ReceivedFactors(ones, broken, 2))
        assert not _is_finite(arithmetic, ReceivedFactors(np.zeros(6, np.float32), broken, 2))
        assert arithmetic.first_not_finite([ones, ReceivedFactors(ones, ones, 2), broken, broken]) == 2
        assert arithmetic.first_not_finite([ReceivedFactors(ones, broken, 2), ones]) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 1003])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_number_that_is_not_finite_is_found(dtype: str, size: int, value: float) -> None:
    arithmetic, numbers = NumpyArithmetic(dtype), _numbers(size, 0, dtype)
    assert _is_finite(arithmetic, numbers)
    numbers[size // 2] = value
    assert not _is_finite(arithmetic, numbers)


def test_numbers_are_finite_where_their_own_type_holds_their_squares() -> None:
    assert _is_finite(NumpyArithmetic("float32"), np.full(5, 1e18, np.float32))
    assert not _is_finite(NumpyArithmetic("float32"), np.full(5, 1e20, np.float32))
    assert _is_finite(NumpyArithmetic("float64"), np.full(5, 1e150))
    assert not _is_finite(NumpyArithmetic("float64"), np.full(5, 1e200))


@pytest.mark.parametrize("size", [1e18, 1e19, 1e20, 1e30])
def test_no_gradient_that_is_let_in_freezes_weights_of_adagrad(size: float) -> None:
    arithmetic, gradient = NumpyArithmetic("float32"), np.full(3, size, np.float32)
    weights, squares = np.zeros(3, np.float32), np.zeros(3, np.float32)
    if _is_finite(arithmetic, gradient):
        arithmetic.apply(Adagrad(), [ShardUpdates(weights, [squares], [(0.1, gradient)], 3)])
    assert np.isfinite(squares).all()


def test_shards_that_lie_side_by_side_travel_as_one_buffer_and_come_back_each_by_itself() -> None:
    arithmetic = NumpyArithmetic("float32")
    rows = [np.arange(size, dtype=np.float32) + size for size in (16, 32, 16)]
    together = arithmetic.contiguous(rows)
    assert [len(arithmetic.write_all(each)) for each in (rows, together, together[:2])] == [3, 1, 2]
    for values in (rows, together):
        for read in (arithmetic.read_all, arithmetic.borrow_all):
            rest = [*arithmetic.write_all(values), b"more"]
            buffers = iter(rest)
            found = read(buffers, [16, 32, 16])
            assert all(np.array_equal(one, other) for one, other in zip(found, rows, strict=True))
            assert next(buffers) == b"more"
    taken = arithmetic.borrow_all(iter(arithmetic.write_all(together)), [16, 32, 16])
    copied = arithmetic.read_all(iter(arithmetic.write_all(taken)), [16, 32, 16])
    together[1][:] = 0.0
    assert not taken[1].any() and copied[1].any(), "what is taken is the message's memory"
    assert len(arithmetic.write_all(copied)) == 1
    odd = [np.zeros(size, np.float32) for size in (3, 5)]
    assert len(arithmetic.write_all(arithmetic.contiguous(odd))) == 2, "as memory is read"
    with pytest.raises(ValueError, match="expected 32 numbers"):
        arithmetic.read_all(iter(arithmetic.write_all(rows)), [16, 32, 16][1:])


def test_what_is_written_of_several_shards_fits_whether_it_is_one_buffer_or_more() -> None:
    arithmetic = NumpyArithmetic("float32")
    apart = [np.ones(16, np.float32), np.ones(32, np.float32)]
    together = arithmetic.contiguous(apart)
    sizes = [16, 32]
    for values in (apart, together, apart[:1], []):
        wanted = sizes[: len(values)]
        buffers = arithmetic.write_all(values)
        assert arithmetic.fit_all(iter(buffers), wanted), len(buffers)
        assert [len(each) for each in arithmetic.read_all(iter(buffers), wanted)] == wanted
    assert len(arithmetic.write_all(together)) == 1
    for wrong in ((), (b"",), (bytes(64),), (bytes(64), bytes(64)), (bytes(193),), ("x", bytes(128))):
        assert not arithmetic.fit_all(iter(wrong), sizes)
