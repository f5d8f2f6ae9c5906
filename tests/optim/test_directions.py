"""β and the two loops on dot products, compared with the formulas on vectors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cotswold.optim.cg import BETAS, BetaName, StepDots
from cotswold.optim.lbfgs import GramMatrix, two_loop_recursion


def vectors(count: int, seed: int) -> Tensor:
    return torch.randn(count, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def change(g: Tensor, old: Tensor, d: Tensor) -> StepDots:
    y = g - old
    dots = (old @ old, g @ g, g @ d, g @ y, d @ y, y @ y, d @ d)
    return StepDots(*map(float, dots))


def by_vectors(name: BetaName, g: Tensor, old: Tensor, d: Tensor) -> float:
    y = g - old
    if name == "polak-ribiere":
        return max(0.0, float(g @ y / (old @ old)))
    if name == "hestenes-stiefel":
        return max(0.0, float(g @ y / (d @ y))) if d @ y > 0 else 0.0
    if name == "dai-yuan":
        alike = abs(g @ old) >= 0.5 * (g @ g)
        return float(g @ g / (d @ y)) if d @ y > 0 and not alike else 0.0
    if d @ y <= 0:
        return 0.0
    beta = float((y - 2 * d * (y @ y) / (d @ y)) @ g / (d @ y))
    return max(beta, -1.0 / (float(d.norm()) * min(0.01, float(old.norm()))))


@pytest.mark.parametrize("name", BETAS)
@given(seed=st.integers(0, 10**6))
def test_beta_by_dots_is_beta_by_vectors(name: BetaName, seed: int) -> None:
    g, old, d = vectors(3, seed)
    assert BETAS[name](change(g, old, d)) == pytest.approx(by_vectors(name, g, old, d), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", BETAS)
def test_all_betas_are_one_on_a_parabola_with_exact_searches(name: BetaName) -> None:
    """With g ⟂ d and g ⟂ g_old, as in linear conjugate gradient, all are g·g / g_old·g_old."""
    g, old = torch.zeros(2, 12, dtype=torch.float64)
    g[0], old[1] = 3.0, 2.0
    assert BETAS[name](change(g, old, -old)) == pytest.approx(9 / 4)


@pytest.mark.parametrize("name", BETAS)
def test_no_change_of_the_gradient_is_no_division_by_zero(name: BetaName) -> None:
    g = torch.ones(12, dtype=torch.float64)
    assert BETAS[name](change(g, g, -g)) == 0.0


def loops(s: Tensor, y: Tensor, g: Tensor) -> Tensor:
    """Return algorithm 7.4 of Nocedal and Wright 2006, on vectors."""
    q, kept = g.clone(), []
    for i in reversed(range(len(s))):
        kept.append(float(s[i] @ q / (y[i] @ s[i])))
        q = q - kept[-1] * y[i]
    r = q * (s[-1] @ y[-1] / (y[-1] @ y[-1])) if len(s) else q
    for i in range(len(s)):
        r = r + s[i] * (kept[len(s) - 1 - i] - y[i] @ r / (y[i] @ s[i]))
    return -r


@settings(max_examples=50)
@given(count=st.integers(0, 6), seed=st.integers(0, 10**6))
def test_the_two_loops_on_dots_are_those_on_vectors(count: int, seed: int) -> None:
    g, *s = vectors(count + 1, seed)
    steps = torch.stack(s) if s else torch.zeros(0, 12, dtype=torch.float64)
    curvature = torch.diag(torch.linspace(1, 9, 12, dtype=torch.float64))
    y = steps @ curvature
    found = two_loop_recursion(
        GramMatrix(
            (steps @ y.T).tolist(), (y @ y.T).tolist(), (steps @ g).tolist(), (y @ g).tolist(), float(g @ g)
        )
    )
    direction = found.g * g
    for a, b, each, change_ in zip(found.s, found.y, steps, y, strict=True):
        direction = direction + a * each + b * change_
    expected = loops(steps, y, g)
    assert torch.allclose(direction, expected, rtol=1e-8, atol=1e-10)
    assert found.slope == pytest.approx(float(expected @ g), rel=1e-8)


def test_products_that_are_not_needed_are_not_read() -> None:
    nan = float("nan")
    full = GramMatrix([[2.0, 1.0], [5.0, 3.0]], [[4.0, 1.0], [1.0, 5.0]], [1.0, 2.0], [0.5, 0.25], 1.0)
    holes = GramMatrix([[2.0, 1.0], [nan, 3.0]], full.yy, full.sg, full.yg, 1.0)
    assert two_loop_recursion(full) == two_loop_recursion(holes)
