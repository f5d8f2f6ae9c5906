from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.kernels.operations import DTYPES, processors
from tests.support.kernels.shard_updates import CONSTANTS, KINDS, alike, margins_are_whole, vector
from torch import Tensor

from cotswold.kernels.available import WrongKernelError
from cotswold.kernels.compile import library
from cotswold.kernels.machine import execution
from cotswold.kernels.machine.processor import Processor
from cotswold.kernels.operands import name_of
from cotswold.kernels.products.problem import Overrides, processor_of
from cotswold.kernels.updates import BlockKind, Factors, Kind, factors, products, run_products
from cotswold.kernels.updates.passes import apply_update

SHAPES = st.one_of(
    st.tuples(st.integers(1, 20), st.integers(1, 200)),
    st.sampled_from([(1, 1500), (1100, 3), (40, 257)]),
)
EXAMPLES = st.lists(st.one_of(st.integers(1, 9), st.sampled_from([255, 257, 600])), min_size=1, max_size=4)


@dataclass(frozen=True, eq=False)
class Given:
    """A block, its weights, its state, and pushes, all surrounded by NaN."""

    block: BlockKind
    weights: Tensor
    kept: Tensor | None
    pushes: list[Factors]


def random(
    kind: Kind, dtype: torch.dtype, shape: tuple[int, int], examples: list[int], offset: int = 0
) -> Given:
    generator = torch.Generator().manual_seed(sum(examples))

    def some(*size: int) -> Tensor:
        count = int(np.prod(size))
        return vector(torch.randn(count, dtype=dtype, generator=generator), offset).view(size)

    rows, columns = shape
    block = BlockKind(kind, rows, columns, name_of(dtype), CONSTANTS[kind])
    kept = None if kind == "add" else vector(some(rows * columns).abs(), offset)
    pushes = [(0.5 ** (1 + n) - 0.1, some(k, rows), some(k, columns)) for n, k in enumerate(examples)]
    return Given(block, some(rows * columns), kept, pushes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@given(SHAPES, EXAMPLES, st.integers(0, 17))
@settings(max_examples=25)
def test_factors_do_what_their_products_do_and_nothing_beside_a_block_is_touched(
    kind: Kind, dtype: torch.dtype, shape: tuple[int, int], examples: list[int], offset: int
) -> None:
    one = random(kind, dtype, shape, examples, offset)
    rows = (one.weights, torch.zeros_like(one.weights) if one.kept is None else one.kept)
    before = (rows[0].double().numpy().reshape(shape), rows[1].double().numpy().reshape(shape))
    for factor, errors, seen in one.pushes:
        product = errors.double().numpy().T @ seen.double().numpy()
        before = apply_update(kind, one.block.constant, before, factor, product)
    run_products(one.block, one.weights, one.kept, one.pushes)
    # an error of a sum that cancels is no small part of it, nor of what Adagrad divides by its size
    close = 2e-3 if dtype == torch.float32 else 1e-10
    np.testing.assert_allclose(one.weights.numpy().reshape(shape), before[0], rtol=close, atol=close)
    assert margins_are_whole(one.weights)
    if one.kept is not None:
        np.testing.assert_allclose(one.kept.numpy().reshape(shape), before[1], rtol=close, atol=close)
        assert margins_are_whole(one.kept)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@given(SHAPES, EXAMPLES, st.integers(1, 3), st.sampled_from(processors()), st.integers(0, 17))
@settings(max_examples=20)
def test_any_vector_threads_place_and_queue_give_the_same_bits(
    kind: Kind,
    dtype: torch.dtype,
    shape: tuple[int, int],
    examples: list[int],
    threads: int,
    processor: Processor,
    offset: int,
) -> None:
    one, other = random(kind, dtype, shape, examples), random(kind, dtype, shape, examples, offset)
    run_products(one.block, one.weights, one.kept, one.pushes, Overrides(threads=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "FLOPS_A_THREAD", 1.0)
        for push in other.pushes:
            how = Overrides(processor, threads=threads)
            run_products(other.block, other.weights, other.kept, [push], how)
    assert alike((one.weights, one.kept), (other.weights, other.kept))


def test_rows_have_norm_1_afterwards_where_they_are_to() -> None:
    weights = torch.randn(5 * 37)
    block = BlockKind("add", 5, 37, "float32", unit_norm=True)
    run_products(block, weights, None, [(0.1, torch.randn(3, 5), torch.randn(3, 37))])
    torch.testing.assert_close(weights.view(5, 37).norm(dim=1), torch.ones(5))


def test_a_kernel_that_computes_wrongly_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_ADDRESSES", {})
    monkeypatch.setattr("cotswold.kernels.compile.code_cache.load", lambda _: None)
    monkeypatch.setattr("cotswold.kernels.compile.code_cache.save", lambda *_: None)
    monkeypatch.setattr(factors, "HEIGHTS", (6, 2))
    with pytest.raises(WrongKernelError, match="factors add float32"):
        products.kernel("add", "float32", processor_of())
