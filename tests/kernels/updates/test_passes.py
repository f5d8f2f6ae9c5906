from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.kernels.operations import DTYPES, processors
from tests.support.kernels.shard_updates import KINDS, Operands, alike, margins_are_whole, shard_of

from cotswold.kernels.available import WrongKernelError
from cotswold.kernels.compile import library
from cotswold.kernels.machine import execution
from cotswold.kernels.machine.processor import Processor
from cotswold.kernels.products.problem import Overrides, processor_of
from cotswold.kernels.updates import Kind, Queues, passes, run, write

SHAPES = st.one_of(
    st.tuples(st.integers(1, 700), st.just(0)),
    st.tuples(st.integers(1, 60), st.integers(1, 150)),
    st.tuples(st.just(40_000), st.just(0)),
    st.tuples(st.just(3), st.just(20_001)),
)
"""Sizes without rows, or with rows and columns; the last two have several tasks or parts."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@given(SHAPES, st.integers(1, 9), st.integers(0, 17))
@settings(max_examples=25)
def test_updates_are_the_formulas_and_nothing_beside_a_vector_is_touched(
    kind: Kind, dtype: torch.dtype, shape: tuple[int, int], pushes: int, offset: int
) -> None:
    given_ = Operands.random(shard_of(kind, shape[0], dtype, shape[1]), pushes, 1, offset)
    weights, kept = given_.expected()
    run(given_.shard, given_.weights, given_.kept, given_.pushes)
    close = 2e-5 if dtype == torch.float32 else 1e-13
    np.testing.assert_allclose(given_.weights.numpy(), weights, rtol=close, atol=close * 10)
    assert margins_are_whole(given_.weights)
    if given_.kept is not None:
        np.testing.assert_allclose(given_.kept.numpy(), kept, rtol=close, atol=close * 10)
        assert margins_are_whole(given_.kept)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@given(SHAPES, st.integers(1, 9), st.integers(1, 3), st.sampled_from(processors()), st.integers(0, 17))
@settings(max_examples=25)
def test_any_vector_threads_and_place_in_memory_give_the_same_bits(
    kind: Kind,
    dtype: torch.dtype,
    shape: tuple[int, int],
    pushes: int,
    threads: int,
    processor: Processor,
    offset: int,
) -> None:
    one = Operands.random(shard_of(kind, shape[0], dtype, shape[1]), pushes, 2)
    other = Operands.random(one.shard, pushes, 2, offset)
    run(one.shard, one.weights, one.kept, one.pushes, Overrides(threads=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "CHEAP_SERIAL_BELOW", 1)
        run(other.shard, other.weights, other.kept, other.pushes, Overrides(processor, threads=threads))
    assert alike((one.weights, one.kept), (other.weights, other.kept))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@given(st.sampled_from([1, 31, 4097, 40_000]), st.integers(2, 9))
@settings(max_examples=15)
def test_pushes_at_once_give_the_bits_of_one_after_the_other(
    kind: Kind, dtype: torch.dtype, size: int, pushes: int
) -> None:
    together = Operands.random(shard_of(kind, size, dtype), pushes, 3)
    apart = together.copy()
    run(together.shard, together.weights, together.kept, together.pushes)
    for push in apart.pushes:
        run(apart.shard, apart.weights, apart.kept, [push])
    assert alike((together.weights, together.kept), (apart.weights, apart.kept))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@given(
    st.lists(st.tuples(SHAPES, st.integers(1, 6), st.integers(0, 17)), min_size=1, max_size=9),
    st.integers(1, 3),
    st.sampled_from(processors()),
)
@settings(max_examples=25)
def test_many_shards_in_one_call_have_the_bits_of_each_alone_and_nothing_beside_them_is_touched(
    kind: Kind,
    dtype: torch.dtype,
    shards: list[tuple[tuple[int, int], int, int]],
    threads: int,
    processor: Processor,
) -> None:
    together = [
        Operands.random(shard_of(kind, shape[0], dtype, shape[1]), pushes, seed, offset)
        for seed, (shape, pushes, offset) in enumerate(shards)
    ]
    apart = [one.copy() for one in together]
    queues = Queues()
    for one in together:
        kept = 0 if one.kept is None else one.kept.data_ptr()
        addresses, factors = [each.data_ptr() for _, each in one.pushes], [each for each, _ in one.pushes]
        queues.add(one.shard, one.weights.data_ptr(), kept, addresses, factors)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "CHEAP_SERIAL_BELOW", 1)
        queues.run(together[0].shard, Overrides(processor, threads=threads))
    for one, other in zip(together, apart, strict=True):
        run(other.shard, other.weights, other.kept, other.pushes, Overrides(threads=1))
        assert alike((one.weights, one.kept), (other.weights, other.kept))
        assert margins_are_whole(one.weights) and (one.kept is None or margins_are_whole(one.kept))


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_a_row_without_a_norm_is_left_and_the_others_are_scaled(value: float) -> None:
    rows = torch.randn(3, 37)
    rows[1] = value
    found = rows.clone()
    shard = shard_of("add", 3, torch.float32, 37)
    run(shard, found.view(-1), None, [(0.0, torch.zeros(3 * 37))])
    assert found[1].numpy().tobytes() == rows[1].numpy().tobytes()
    torch.testing.assert_close(found[[0, 2]].norm(dim=1), torch.ones(2))


def test_norms_that_float32_cannot_square_are_scaled_too() -> None:
    for size in (1e-30, 1e30):
        found = torch.full((2, 50), size)
        run(shard_of("add", 2, torch.float32, 50), found.view(-1), None, [(0.0, torch.zeros(100))])
        torch.testing.assert_close(found.norm(dim=1), torch.ones(2))


def test_an_update_that_computes_wrongly_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    here = processor_of()
    monkeypatch.setattr(library, "_ADDRESSES", {})
    monkeypatch.setattr("cotswold.kernels.compile.code_cache.load", lambda _: None)
    monkeypatch.setattr("cotswold.kernels.compile.code_cache.save", lambda *_: None)
    monkeypatch.setattr(write._Rows, "_scale", lambda *_: [])
    with pytest.raises(WrongKernelError, match="update add float32"):
        passes.kernel("add", "float32", dataclasses.replace(here))
