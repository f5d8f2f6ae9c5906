from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from tests.support.kernels.cuda_layers import NO_DEVICE, NO_TRITON, Device, Interpreter, Runner
from tests.support.ops.layers import ODD
from torch import Tensor

from cotswold import ops
from cotswold.errors import GeometryError
from cotswold.kernels.cuda import update_constants
from cotswold.kernels.cuda.updates import TILE, _sides
from cotswold.ops import sgd_rule

SHAPES = [(1, 1, 1, 1), (3, 2, 5, 7), (2, 3, 20, 8), (2, 5, 60, 20), (1, 30, 40, 3), (1, 2, 3, 40)]
NEAR, FAR = ops.StepRule(rate=0.3), ops.StepRule(rate=1e4, longest=0.1)
DTYPES = {torch.float64: 1e-12, torch.float32: 1e-5}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("interpreter", marks=NO_TRITON),
        pytest.param("device", marks=[pytest.mark.cuda, NO_TRITON, NO_DEVICE]),
    ],
)
def run(request: pytest.FixtureRequest) -> Iterator[Runner]:
    if request.param == "device":
        yield Device()
        return
    interpreter = Interpreter()
    yield interpreter
    interpreter.close()


@dataclass
class Moving:
    """Filters of some blocks and all that an update takes."""

    filters: Tensor
    norms: Tensor
    momentum: Tensor
    gradient: Tensor
    alpha: Tensor

    @classmethod
    def drawn(cls, shape: tuple[int, ...], dtype: torch.dtype) -> Moving:
        source = torch.Generator().manual_seed(11)
        filters, momentum, gradient = (torch.randn(shape, generator=source).double() for _ in range(3))
        norms = filters.square().sum((1, 2)).sqrt()
        momentum *= 0.02
        alpha = torch.tensor(0.6, dtype=torch.float64)
        return cls(filters.to(dtype), norms.to(dtype), momentum.to(dtype), gradient.to(dtype), alpha)

    def constants(self, rule: ops.StepRule) -> Tensor:
        fan_in = self.filters.shape[1] * self.filters.shape[2]
        return update_constants(self.filters, rule.momentum, rule.rate / fan_in, rule.longest)

    def operands(self, rule: ops.StepRule) -> list[Tensor]:
        tensors = (self.filters, self.norms, self.momentum, self.gradient, self.alpha)
        return [one.clone() for one in tensors] + [self.constants(rule)]

    def expected(self, rule: ops.StepRule) -> tuple[Tensor, Tensor, Tensor]:
        """Return filters, norms and momentum after the step by the rule, in float64."""
        found = tuple(one.double() for one in (self.filters, self.norms, self.momentum))
        filters, norms, momentum = (one.clone() for one in found)
        sgd_rule.filter_step(filters, norms, momentum, self.gradient.double().clone(), self.alpha, rule)
        return filters, norms, momentum


def check(found: list[Tensor], expected: tuple[Tensor, ...], rtol: float) -> None:
    for ours, theirs in zip(found, expected, strict=False):
        torch.testing.assert_close(ours.double(), theirs, rtol=rtol, atol=rtol * float(theirs.abs().max()))


@pytest.mark.parametrize("rule", [NEAR, FAR], ids=["near", "too far"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_update_equals_the_rule(
    run: Runner, shape: tuple[int, ...], dtype: torch.dtype, rule: ops.StepRule
) -> None:
    case = Moving.drawn(shape, dtype)
    found, expected = run("update", ODD, case.operands(rule), {}), case.expected(rule)
    check(found, expected, DTYPES[dtype])
    lengths = (expected[2].square().sum((1, 2)).sqrt() / case.norms.double()).max()
    if rule is FAR and shape != (1, 1, 1, 1):  # a filter of one weight has no gradient across itself
        assert float(lengths) == pytest.approx(rule.longest, rel=1e-5)
    assert torch.equal(found[3], case.gradient)


def test_a_filter_of_zeros_stays_and_its_momentum_ends(run: Runner) -> None:
    case = Moving.drawn((2, 3, 20, 8), torch.float64)
    case.filters[1, :, :, 3] = 0
    case.norms[1, 3] = 0
    found = run("update", ODD, case.operands(NEAR), {})
    check(found, case.expected(NEAR), 1e-12)
    assert all(bool((one == 0).all()) for one in (found[0][1, :, :, 3], found[1][1, 3], found[2][1, :, :, 3]))
    assert bool((found[1].flatten() == 0).sum() == 1)


def test_narrow_filters_are_the_rounded_masters(run: Runner) -> None:
    case = Moving.drawn((2, 5, 60, 20), torch.float32)
    case.gradient = case.gradient.bfloat16()
    narrow = torch.full_like(case.gradient, float("nan"))
    found = run("update", ODD, [*case.operands(NEAR), narrow], {})
    check(found, case.expected(NEAR), 1e-5)
    if isinstance(run, Device):
        assert torch.equal(found[-1], found[0].bfloat16())
    else:  # the interpreter cuts bits off, where a device rounds
        torch.testing.assert_close(found[-1].float(), found[0], rtol=2**-7, atol=0)


def test_an_update_gives_the_same_bits_again(run: Runner) -> None:
    case = Moving.drawn((3, 2, 5, 7), torch.float32)
    first, second = (run("update", ODD, case.operands(NEAR), {}) for _ in range(2))
    assert all(torch.equal(*both) for both in zip(first, second, strict=True))


def test_operands_that_do_not_fit_an_update_are_refused_by_name(run: Runner) -> None:
    case = Moving.drawn((2, 3, 20, 8), torch.float32)
    filters, norms, momentum, gradient, alpha, constants = case.operands(NEAR)
    for operands, words in (
        ([filters, norms[:, 1:], momentum, gradient, alpha, constants], "contiguous norms"),
        ([filters, norms, momentum, gradient[:1], alpha, constants], "contiguous gradient"),
        ([filters, norms, momentum.double(), gradient, alpha, constants], "one dtype and device"),
        ([filters, norms, momentum, gradient.half(), alpha, constants], "float16"),
    ):
        with pytest.raises(GeometryError, match=words):
            run("update", ODD, operands, {})


def test_tiles_are_no_larger_than_the_filters_need() -> None:
    assert _sides(1200, 128) == TILE
    assert _sides(192, 32) == TILE
    assert _sides(9, 1) == {"NEURONS": 1, "PLACES": 16, "num_warps": 1}
