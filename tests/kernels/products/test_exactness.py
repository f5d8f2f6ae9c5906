from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.kernels.operations import DTYPES, KERNELS, OPERATIONS, Dense, Pair, error, operands, run
from tests.support.ops.layers import layers
from torch import Tensor

from cotswold.geometry import BlockLocal, MapShape, Window
from cotswold.kernels.products.problem import Overrides

FIELDS_OF_20 = BlockLocal(MapShape(3, 28, 24), Window(20, 4), Window(20, 4), rows=4, columns=4, depth=8)
"""The paper's first stack, on a small map."""
LARGE = {
    "blocks of 4x4x8 that see 20x20x3": (FIELDS_OF_20, 33),
    "the same, padded": (
        BlockLocal(MapShape(3, 16, 16), Window(20, 4, 4, 5), Window(20, 4, 5, 4), rows=4, columns=4, depth=8),
        17,
    ),
    "steps beyond fields": (
        BlockLocal(MapShape(5, 23, 25), Window(3, 5), Window(2, 7, 1, 0), rows=2, columns=1, depth=7),
        19,
    ),
    "one field that is the whole map": (
        BlockLocal(MapShape(3, 9, 7), Window(9), Window(7), rows=1, columns=1, depth=67),
        50,
    ),
    "field rows longer than an entry": (
        BlockLocal(MapShape(70, 5, 9), Window(3, 2, 1, 1), Window(5, 3, 2, 1), rows=1, columns=2, depth=9),
        21,
    ),
    "more neurons in a block's row than an entry has": (
        BlockLocal(MapShape(2, 5, 5), Window(3, 2), Window(3, 2), rows=1, columns=2, depth=140),
        21,
    ),
    "more images than an entry has": (
        BlockLocal(MapShape(2, 5, 4), Window(3, 2), Window(3, 1), rows=1, columns=1, depth=3),
        600,
    ),
    "a single channel and depth": (
        BlockLocal(MapShape(1, 11, 13), Window(5, 2, 2, 2), Window(4, 1), rows=1, columns=1, depth=1),
        70,
    ),
    "one image": (BlockLocal(MapShape(4, 10, 9), Window(5, 1), Window(3, 2), 2, 2, 5), 1),
}
LONG = {
    "connected to 1024 inputs": BlockLocal(MapShape(1024, 1, 1), Window(1), Window(1), 1, 1, 64),
    "connected to 6000 inputs": BlockLocal(MapShape(60, 10, 10), Window(10), Window(10), 1, 1, 32),
}
"""Layers with sums so long that a single chain of additions is less exact than a sum of sums."""


def exact(operation: str, pair: Pair, layer: BlockLocal) -> Tensor:
    """Return the sums in float64, NaN for weights that meet only padding."""
    first, second = pair
    return Dense.of(layer).product(operation, (first.to(torch.float64), second.to(torch.float64)))


def whole_numbers(pair: Pair) -> Pair:
    """Return operands of small integers, whose sums are exact in any order."""
    first, second = pair
    return (4 * first).round(), (4 * second).round()


def check_errors(operation: str, layer: BlockLocal, pair: Pair, free: Overrides, slack: float = 0.0) -> None:
    """Check that the error of a kernel is at most twice that of torch.mm, plus ``slack`` times the last bit
    of the largest sum of magnitudes: if terms cancel, partial sums exceed the result."""
    expected = exact(operation, pair, layer)
    magnitudes = exact(operation, (pair[0].abs(), pair[1].abs()), layer)
    last = float(magnitudes.nan_to_num().max()) * torch.finfo(pair[0].dtype).eps
    ours = error(run(operation, layer, pair, free), expected)
    dense = error(Dense.of(layer).product(operation, pair), expected)
    assert ours <= 2 * dense + slack * last, f"{operation}: {ours}, torch.mm: {dense}"


@given(layers(), st.integers(1, 70), st.sampled_from([None, False, True]))
@settings(max_examples=200)
def test_a_random_layer_errs_at_most_twice_as_much_as_a_dense_product(
    layer: BlockLocal, images: int, few: bool | None
) -> None:
    for operation in OPERATIONS:
        pair = operands(operation, layer, images, torch.float32)
        # of few and short sums the dense product may get every one right, by luck
        check_errors(operation, layer, pair, Overrides(small_batch=few), slack=2)


@given(layers(), st.integers(1, 70), st.sampled_from(DTYPES), st.sampled_from([None, False, True]))
@settings(max_examples=100)
def test_sums_of_whole_numbers_are_exact(
    layer: BlockLocal, images: int, dtype: torch.dtype, few: bool | None
) -> None:
    for operation in OPERATIONS:
        pair = whole_numbers(operands(operation, layer, images, dtype))
        assert (
            error(run(operation, layer, pair, Overrides(small_batch=few)), exact(operation, pair, layer)) == 0
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("operation", "few"), KERNELS)
@pytest.mark.parametrize("name", LARGE)
def test_sums_of_whole_numbers_are_exact_in_larger_layers(
    name: str, operation: str, few: bool | None, dtype: torch.dtype
) -> None:
    layer, images = LARGE[name]
    pair = whole_numbers(operands(operation, layer, images, dtype))
    assert error(run(operation, layer, pair, Overrides(small_batch=few)), exact(operation, pair, layer)) == 0


@pytest.mark.parametrize(("operation", "few"), KERNELS)
@pytest.mark.parametrize("name", LARGE)
def test_larger_layers_err_at_most_twice_as_much_as_dense_products(
    name: str, operation: str, few: bool | None
) -> None:
    layer, images = LARGE[name]
    pair = operands(operation, layer, images, torch.float32)
    check_errors(operation, layer, pair, Overrides(small_batch=few), slack=1)


@pytest.mark.parametrize(("operation", "few"), KERNELS)
@pytest.mark.parametrize("name", LONG)
def test_long_sums_err_at_most_twice_as_much_as_dense_products(
    name: str, operation: str, few: bool | None
) -> None:
    layer, images = LONG[name], (6000 if operation == "outer" else 48)
    pair = operands(operation, layer, images, torch.float32)
    check_errors(operation, layer, pair, Overrides(small_batch=few))
