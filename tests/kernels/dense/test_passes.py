from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.kernels.dense_passes import PASSES, layer, operands
from tests.support.kernels.operations import processors, same_bits

from cotswold.kernels.available import WrongKernelError
from cotswold.kernels.compile import library
from cotswold.kernels.dense import Operation, passes, run, write
from cotswold.kernels.machine import execution
from cotswold.kernels.machine.processor import Processor
from cotswold.kernels.products.problem import Overrides, processor_of

SHAPES = st.tuples(st.integers(1, 200), st.integers(1, 90), st.sampled_from([0, 7]))


@pytest.mark.parametrize("what", PASSES, ids=lambda what: what.name)
@given(SHAPES, st.integers(1, 3), st.sampled_from(processors()))
@settings(max_examples=12)
def test_any_vector_and_number_of_threads_give_the_same_bits(
    what: Operation, shape: tuple[int, int, int], threads: int, processor: Processor
) -> None:
    of = layer(*shape)
    expected, found = operands(of, 3), operands(of, 3)
    run(what, of, expected, Overrides(threads=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "SERIAL_BELOW", 1)
        run(what, of, found, Overrides(processor, threads=threads))
    assert same_bits(found["sums"], expected["sums"])
    assert same_bits(found["bias_gradient"], expected["bias_gradient"])
    mine, theirs = (one["partials"][:, :, : of.lanes] for one in (found, expected))
    assert same_bits(mine.contiguous(), theirs.contiguous())


@pytest.mark.parametrize("what", PASSES, ids=lambda what: what.name)
def test_a_pattern_has_the_same_bits_wherever_it_is(what: Operation) -> None:
    whole = layer(70, 61, 0)
    expected = operands(whole, 5)
    first = {name: one.clone() for name, one in expected.items()}
    run(what, whole, expected)
    for lane in (0, 15, 31, 37, 60):
        alone = layer(70, 1, 0)
        found = {
            **first,
            "sums": first["sums"][:, lane : lane + 1].contiguous(),
            "other": first["other"][:, lane : lane + 1].contiguous(),
            "classes": first["classes"][lane:].repeat(2)[:16].contiguous(),
            "partials": first["partials"][:, :, lane:].repeat(1, 1, 16)[:, :, :16].contiguous(),
            "bias_gradient": torch.zeros(70),
        }
        run(what, alone, found)
        assert same_bits(found["sums"][:, 0], expected["sums"][:, lane])
        mine, theirs = found["partials"][:, :, 0], expected["partials"][:, :, lane]
        assert same_bits(mine, theirs)


def test_a_pass_that_computes_wrongly_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    what, here = Operation("squared", "identity"), processor_of()
    monkeypatch.setattr(library, "_ADDRESSES", {})
    monkeypatch.setattr("cotswold.kernels.compile.code_cache.load", lambda _: None)
    monkeypatch.setattr("cotswold.kernels.compile.code_cache.save", lambda *_: None)
    usual = write._Group._activation_slopes
    monkeypatch.setattr(
        write._Group, "_activation_slopes", lambda group, gradients, outputs: usual(group, outputs, gradients)
    )
    with pytest.raises(WrongKernelError, match="squared_identity"):
        passes.kernel(what, dataclasses.replace(here))
