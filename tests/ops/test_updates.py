from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.kernels.operations import DTYPES
from tests.support.kernels.shard_updates import KINDS, Operands, alike, shard_of

from cotswold.kernels.updates import CHAINS, Kind
from cotswold.ops import updates
from cotswold.ops.updates import UpdateRule, apply_factors, apply_pushes


def _apply(given_: Operands) -> None:
    shard = given_.shard
    update = UpdateRule(shard.kind, shard.constant, shard.columns, shard.unit_norm)
    apply_pushes(update, given_.weights, given_.kept, given_.pushes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@given(
    st.sampled_from([(1, 0), (31, 0), (40_000, 0), (9, 1), (7, 33), (5, 128), (3, 20_001)]), st.integers(1, 5)
)
@settings(max_examples=20)
def test_torch_gives_the_bits_of_the_kernels(
    kind: Kind, dtype: torch.dtype, shape: tuple[int, int], pushes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        ours = Operands.random(shard_of(kind, shape[0], dtype, shape[1]), pushes, 4)
        theirs = ours.copy()
        _apply(ours)
        patch.setenv("COTSWOLD_KERNELS", "torch")
        _apply(theirs)
    assert alike((ours.weights, ours.kept), (theirs.weights, theirs.kept))


def test_a_row_is_summed_in_as_many_chains_by_both() -> None:
    assert updates.CHAINS == CHAINS


@pytest.mark.parametrize("dtype", DTYPES)
def test_steps_have_the_bits_of_torchs_sgd(dtype: torch.dtype) -> None:
    weights = torch.nn.Parameter(torch.randn(10_007, dtype=dtype))
    ours, optimiser = weights.detach().clone(), torch.optim.SGD([weights], lr=0.3)
    for seed in range(3):
        weights.grad = torch.randn(10_007, dtype=dtype, generator=torch.Generator().manual_seed(seed))
        apply_pushes(UpdateRule("add"), ours, None, [(-0.3, weights.grad)])
        optimiser.step()
    assert alike([ours], [weights.detach()])


def test_steps_are_those_of_torchs_adagrad() -> None:
    weights = torch.nn.Parameter(torch.randn(1000, dtype=torch.float64))
    ours, squares = weights.detach().clone(), torch.zeros(1000, dtype=torch.float64)
    optimiser = torch.optim.Adagrad([weights], lr=0.3, eps=1e-10)
    for seed in range(5):
        weights.grad = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        apply_pushes(UpdateRule("adagrad", 1e-10), ours, squares, [(0.3, weights.grad)])
        optimiser.step()
    torch.testing.assert_close(ours, weights.detach(), rtol=1e-14, atol=1e-14)


def test_what_does_not_fit_is_refused_before_anything_is_changed() -> None:
    weights = torch.ones(6)
    refused: list[tuple[UpdateRule, torch.Tensor | None, torch.Tensor]] = [
        (UpdateRule("add"), None, torch.ones(5)),
        (UpdateRule("add"), None, torch.ones(6, dtype=torch.float64)),
        (UpdateRule("add"), torch.ones(6), torch.ones(6)),
        (UpdateRule("momentum", 0.5), None, torch.ones(6)),
        (UpdateRule("add", columns=4, unit_norm=True), None, torch.ones(6)),
    ]
    for update, kept, push in refused:
        with pytest.raises(ValueError, match=r"optimizer state|divide into rows"):
            apply_pushes(update, weights, kept, [(1.0, push)])
    assert alike([weights], [torch.ones(6)])


@pytest.mark.parametrize("kernels", ["llvm", "torch"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_factors_are_applied_as_their_products_are(
    kernels: str, dtype: torch.dtype, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTSWOLD_KERNELS", kernels)
    for unit_norm in (False, True):
        for rows, columns in ((1, 1), (17, 130)):
            update = UpdateRule(kind, 0.5 if kind != "add" else 0.0, columns, unit_norm)
            weights, beside = (
                torch.randn(rows * columns, dtype=dtype),
                torch.rand(rows * columns, dtype=dtype),
            )
            kept = None if kind == "add" else beside
            pairs = [
                (0.1, torch.randn(k, rows, dtype=dtype), torch.randn(k, columns, dtype=dtype))
                for k in (1, 7, 300)
            ]
            products = [(f, (e.double().t() @ a.double()).view(-1)) for f, e, a in pairs]
            found, also = weights.clone(), None if kept is None else kept.clone()
            expected, beside_it = weights.double(), None if kept is None else kept.double()
            apply_factors(update, found, also, pairs)
            apply_pushes(update, expected, beside_it, products)
            torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
            if also is not None and beside_it is not None:
                torch.testing.assert_close(also.double(), beside_it, rtol=1e-4, atol=1e-4)


def test_factors_that_do_not_fit_are_refused_before_anything_is_changed() -> None:
    weights, good = torch.ones(6), (1.0, torch.ones(4, 2), torch.ones(4, 3))
    for bad in (
        (1.0, torch.ones(4, 2), torch.ones(5, 3)),
        (1.0, torch.ones(4, 3), torch.ones(4, 3)),
        (1.0, torch.ones(4, 2), torch.ones(4, 2)),
        (1.0, torch.ones(0, 2), torch.ones(0, 3)),
        (1.0, torch.ones(4, 2, dtype=torch.float64), torch.ones(4, 3)),
    ):
        with pytest.raises(ValueError, match="do not fit 2 rows of 3 weights"):
            apply_factors(UpdateRule("add", columns=3), weights, None, [good, bad])
    with pytest.raises(ValueError, match="do not divide into rows"):
        apply_factors(UpdateRule("add", columns=4), weights, None, [good])
    assert alike([weights], [torch.ones(6)])
