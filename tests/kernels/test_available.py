from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from tests.support.ops import reference
from tests.support.ops.layers import PLAIN, random_map, random_weights
from torch import Tensor

from cotswold import ops
from cotswold.errors import UserError
from cotswold.kernels import available
from cotswold.kernels.compile import engine
from cotswold.kernels.machine import processor
from cotswold.kernels.microkernels.kinds import ProductKind
from cotswold.kernels.products import run as kernels
from cotswold.kernels.products.prepare import PreparedProduct

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _asked_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("COTSWOLD_KERNELS", raising=False)
    available.compile_error.cache_clear()
    yield
    available.compile_error.cache_clear()


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the kernels of our own that were used."""
    found: list[str] = []
    usual = kernels._prepare_tuned

    def noted(kind: ProductKind, *rest: object, **named: object) -> PreparedProduct:
        found.append(kind.name)
        return usual(kind, *rest, **named)  # type: ignore[arg-type]  # handed on

    monkeypatch.setattr(kernels, "_prepare_tuned", noted)
    return found


def right() -> bool:
    """True if the products agree with the reference."""
    x, y, filters = random_map(PLAIN.input, 3), random_map(PLAIN.output, 3), random_weights(PLAIN)

    def close(a: Tensor, b: Tensor) -> bool:
        return torch.allclose(a, b, rtol=1e-12, atol=1e-12)

    return (
        close(ops.local_product(x, filters, PLAIN), reference.local_product(x, filters, PLAIN))
        and close(ops.local_adjoint(y, filters, PLAIN), reference.local_adjoint(y, filters, PLAIN))
        and close(ops.local_outer(y, x, PLAIN), reference.local_outer(y, x, PLAIN))
    )


@pytest.mark.parametrize("word", ["", "llvm"])
def test_kernels_of_our_own_run_where_nothing_else_is_said(
    word: str, called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTSWOLD_KERNELS", word)
    assert right() and len(called) == 3


def test_the_variable_turns_them_off(called: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTSWOLD_KERNELS", "torch")
    assert right() and called == []


def test_another_word_in_the_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTSWOLD_KERNELS", "fast")
    with pytest.raises(UserError, match="COTSWOLD_KERNELS must be llvm, avx2, torch or unset, got 'fast'"):
        right()


def test_other_types_are_left_to_torch(called: list[str]) -> None:
    x, filters = random_map(PLAIN.input, 3), random_weights(PLAIN)
    ops.local_product(x.to(torch.complex128), filters.to(torch.complex128), PLAIN)
    assert called == []


def falls_back_once(called: list[str], words: str) -> None:
    """Check that products are right without kernels, and that one warning gives the reason."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert right() and right()
    assert [one.category for one in told] == [RuntimeWarning]
    assert words in str(told[0].message)
    assert called == []


def test_a_processor_without_fused_multiply_add_is_left_to_torch(
    called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "this_processor", lambda: None)
    falls_back_once(called, "no fused multiply-add")


def test_where_llvm_cannot_compile_torch_computes(called: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> NoReturn:
        raise RuntimeError("LLVM is of another make")

    monkeypatch.setattr(engine, "compile_object", broken)
    falls_back_once(called, "LLVM is of another make")


def test_where_llvm_compiles_wrongly_torch_computes(
    called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "call_integer_function", lambda address: 41)
    falls_back_once(called, "compiles wrongly")


MISSING = """
import sys, warnings
sys.modules["llvmlite"] = None
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    import cotswold.cli.main, cotswold.nn, cotswold.training.jobs.job
    from tests.support.ops.layers import PLAIN, random_map, random_weights
    from cotswold import ops
    x, filters = random_map(PLAIN.input, 3).requires_grad_(), random_weights(PLAIN).requires_grad_()
    ops.local_product(x, filters, PLAIN).sum().backward()
    from tests.support.ops import reference
    wanted = reference.local_outer(x.new_ones(3, *filters.new_empty(PLAIN.output.channels,
        PLAIN.output.height, PLAIN.output.width).shape), x.detach(), PLAIN)
    assert (filters.grad - wanted).abs().max() < 1e-12
ours = [one for one in told if "llvmlite" in str(one.message)]
print(*(f"{one.category.__name__}: {one.message}" for one in ours), sep="\\n")
"""


@pytest.mark.soak
def test_without_llvmlite_everything_works_and_one_warning_says_so() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", MISSING],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (line,) = done.stdout.splitlines()
    assert line.startswith("RuntimeWarning: llvmlite cannot be loaded")
    assert "torch.bmm" in line
