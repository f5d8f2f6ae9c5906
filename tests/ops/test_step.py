from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.ops import reference
from tests.support.ops.layers import ODD, layers, random_map, random_weights
from torch import Tensor

from cotswold import ops
from cotswold.errors import GeometryError, UserError
from cotswold.geometry import BlockLocal, MapShape, Smoothing, StackGeometry, Window
from cotswold.ops import contrast

PLAIN = StackGeometry(
    BlockLocal(MapShape(3, 14, 13), Window(4, 2), Window(5, 2), 2, 2, 3), Smoothing(3), Smoothing(3)
)
PADDED = StackGeometry(
    BlockLocal(MapShape(2, 9, 11), Window(4, 2, 2, 1), Window(3, 2, 1, 2), 1, 2, 2),
    Smoothing(3, keep=True),
    Smoothing(3, keep=True),
)
BARE = StackGeometry(ODD, Smoothing(1), Smoothing(1))
OBJECTIVE = ops.StackObjective(sparsity=0.3, epsilon=1e-3)
STILL = ops.StepRule(rate=1e-9, momentum=0.0)
"""A rule that hardly moves, so that the momentum is the scaled gradient."""


def new_state(geometry: StackGeometry, dtype: torch.dtype = torch.float64, seed: int = 0) -> ops.StackState:
    filters = ops.random_filters(geometry.filters, seed, 0, dtype=dtype)
    alpha = torch.tensor(0.7, dtype=torch.float64)
    masters = filters.float() if dtype in (torch.bfloat16, torch.float16) else None
    momentum = torch.zeros_like(filters if masters is None else masters)
    return ops.StackState(
        filters, ops.filter_norms(filters), momentum, alpha, torch.ones(()).double(), masters
    )


def autograd_loss(
    state: ops.StackState, filters: Tensor, batch: Tensor, geometry: StackGeometry
) -> tuple[Tensor, Tensor]:
    """Return the objective and the stack's output by differentiable operations, with α fixed."""
    unit = filters / ops.filter_norms(filters)[:, :, None, None, :]
    x = state.gain * batch
    z = state.alpha * ops.local_product(x, unit, geometry.filters)
    error = (ops.local_adjoint(z, unit, geometry.filters) - x).square().sum()
    pooled = ops.l2_pool(z, geometry.pool, OBJECTIVE.epsilon)
    output = pooled if geometry.norm.size == 1 else ops.contrast_norm(pooled, geometry.norm)
    return (error + OBJECTIVE.sparsity * pooled.sum()) / len(batch), output


@pytest.mark.parametrize("geometry", [PLAIN, PADDED, BARE], ids=["plain", "padded", "bare"])
@pytest.mark.parametrize("above", [False, True], ids=["alone", "losses above"])
def test_a_step_follows_the_gradient_of_the_objective(geometry: StackGeometry, above: bool) -> None:
    state, batch = new_state(geometry), 3 * random_map(geometry.input, 5)
    state.filters.mul_(1.7)
    ops.calibrate(state, batch, geometry, OBJECTIVE)
    filters, random_images = state.filters.clone().requires_grad_(), batch.clone().requires_grad_()
    alpha = state.alpha.clone()
    loss, output = autograd_loss(state, filters, random_images, geometry)
    upstream = 0.1 * random_map(geometry.output, 5, seed=4) if above else None
    total = loss if upstream is None else loss + (upstream * output).sum()
    by_filters, by_batch = torch.autograd.grad(total, (filters, random_images))

    report = ops.stack_step(state, batch, geometry, OBJECTIVE, STILL, upstream=upstream, input_gradient=True)
    torch.testing.assert_close(report.loss, loss.detach())
    torch.testing.assert_close(report.reconstruction + report.sparsity, report.loss)
    assert report.input_gradient is not None
    torch.testing.assert_close(report.input_gradient, by_batch)
    unit_step = STILL.rate / (alpha * geometry.filters.fan_in)
    torch.testing.assert_close(state.momentum, -unit_step * by_filters, rtol=1e-7, atol=1e-16)


def test_the_reported_loss_equals_the_reference_objective() -> None:
    state, batch = new_state(PADDED), random_map(PADDED.input, 3)
    expected = reference.objective(state.filters, state.alpha, batch, PADDED, 0.3, 1e-3)
    report = ops.stack_step(state, batch, PADDED, OBJECTIVE, STILL)
    torch.testing.assert_close(report.loss, expected)
    assert report.input_gradient is None


def test_a_step_leaves_filters_of_norm_one_and_records_their_norms() -> None:
    state, batch = new_state(PLAIN), random_map(PLAIN.input, 4)
    before = state.filters.clone()
    for _ in range(3):
        ops.stack_step(state, batch, PLAIN, OBJECTIVE, ops.StepRule(rate=0.5))
    assert not torch.allclose(before, state.filters)
    torch.testing.assert_close(state.norms, torch.ones_like(state.norms))
    torch.testing.assert_close(state.norms, ops.filter_norms(state.filters))


def test_no_filter_turns_further_than_the_rule_allows() -> None:
    state, batch = new_state(PLAIN), random_map(PLAIN.input, 4)
    before = state.filters.clone()
    ops.stack_step(state, batch, PLAIN, OBJECTIVE, ops.StepRule(rate=1e6, longest=0.1))
    distance = ops.filter_norms(state.filters - before)
    assert float(distance.max()) <= 0.1 + 1e-9
    assert float(distance.min()) > 0.09


def test_weights_that_meet_padding_stay_zero() -> None:
    state, batch = new_state(PADDED), random_map(PADDED.input, 4)
    padding = state.filters == 0
    assert padding.any()
    ops.stack_step(state, batch, PADDED, OBJECTIVE, ops.StepRule(rate=0.1))
    assert torch.equal(state.filters == 0, padding)


def test_calibration_makes_the_inputs_power_one_and_alpha_optimal() -> None:
    state, batch = new_state(PLAIN), 40 * random_map(PLAIN.input, 6)
    ops.calibrate(state, batch, PLAIN, ops.StackObjective(sparsity=0.1, epsilon=1e-12))
    torch.testing.assert_close((state.gain * batch).square().mean(), torch.ones(()).double())
    losses = [
        reference.objective(state.filters, state.alpha * t, state.gain * batch, PLAIN, 0.1, 1e-12)
        for t in (0.99, 1.0, 1.01)
    ]
    assert losses[1] < losses[0] and losses[1] < losses[2]


def test_steps_bring_alpha_back_to_its_best_value() -> None:
    state, batch = new_state(PLAIN), random_map(PLAIN.input, 6)
    ops.calibrate(state, batch, PLAIN, OBJECTIVE)
    best = state.alpha.clone()
    state.alpha.mul_(5)
    for _ in range(200):
        ops.stack_step(state, batch, PLAIN, OBJECTIVE, STILL)
    torch.testing.assert_close(state.alpha, best, rtol=0.01, atol=0)


def test_learning_lowers_the_objective_on_images_not_seen() -> None:
    geometry = replace(PLAIN, filters=replace(PLAIN.filters, depth=2))
    basis = random_map(geometry.input, 4, seed=9).flatten(1)

    def random_images(seed: int, images: int) -> Tensor:
        mixing = torch.randn(images, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return (mixing @ basis).view(images, 3, 14, 13)

    state, held_out = new_state(geometry), random_images(1000, 64)
    ops.calibrate(state, held_out, geometry, OBJECTIVE)
    first = ops.stack_step(replace_state(state), held_out, geometry, OBJECTIVE, STILL).loss
    for step in range(60):
        ops.stack_step(state, random_images(step, 32), geometry, OBJECTIVE, ops.StepRule(rate=0.05))
    last = ops.stack_step(replace_state(state), held_out, geometry, OBJECTIVE, STILL).loss
    assert last < 0.8 * first


def replace_state(state: ops.StackState) -> ops.StackState:
    """Return a copy that can be stepped independently."""
    return ops.StackState(
        state.filters.clone(),
        state.norms.clone(),
        state.momentum.clone(),
        state.alpha.clone(),
        state.gain.clone(),
    )


INPUTS: dict[str, Callable[[float], Tensor]] = {
    "noise": lambda scale: scale * random_map(PLAIN.input, 4),
    "constant": lambda scale: torch.full((4, 3, 14, 13), scale, dtype=torch.float64),
    "zero": lambda scale: torch.zeros(4, 3, 14, 13, dtype=torch.float64),
    "one pixel": lambda scale: scale * torch.nn.functional.pad(torch.ones(4, 3, 1, 1).double(), (6, 6, 7, 6)),
}


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@settings(max_examples=8)
@given(
    scale=st.floats(-3, 3).map(lambda power: 10.0**power),
    sparsity=st.sampled_from([0.0, 0.1, 10.0, 1e4]),
    rate=st.sampled_from([0.01, 0.5, 50.0]),
    calibrated=st.booleans(),
)
def test_training_stays_finite_whatever_the_inputs(
    kind: str, dtype: torch.dtype, scale: float, sparsity: float, rate: float, calibrated: bool
) -> None:
    batch, objective = INPUTS[kind](scale).to(dtype), ops.StackObjective(sparsity, 1e-6)
    state = new_state(PLAIN, dtype)
    if calibrated:
        ops.calibrate(state, batch, PLAIN, objective)
    reports = [ops.stack_step(state, batch, PLAIN, objective, ops.StepRule(rate)) for _ in range(12)]
    assert all(report.loss.isfinite() for report in reports)
    for tensor in (state.filters, state.momentum, state.norms, state.alpha):
        assert tensor.isfinite().all()
    if calibrated:
        assert reports[-1].loss <= 3 * reports[0].loss + 1e-3


def test_sparsity_too_strong_for_the_data_does_not_take_alpha_to_zero() -> None:
    state, batch = new_state(PLAIN), random_map(PLAIN.input, 4)
    objective = ops.StackObjective(sparsity=1e3, epsilon=1e-6)
    ops.calibrate(state, batch, PLAIN, objective)
    alphas = [
        float(ops.stack_step(state, batch, PLAIN, objective, ops.StepRule(0.05)).alpha) for _ in range(300)
    ]
    ratios = [after / before for before, after in pairwise(alphas)]
    assert min(ratios) >= 0.5**0.1 - 1e-9
    free = replace(state, alpha=state.alpha.clone())
    ops.calibrate(free, batch, PLAIN, ops.StackObjective(sparsity=0.0))
    assert alphas[-1] == pytest.approx(float(free.alpha) / 10, rel=0.2)
    assert state.filters.isfinite().all()


@given(layers(), st.integers(1, 3))
@settings(max_examples=25)
def test_any_layer_can_take_a_step(layer: BlockLocal, images: int) -> None:
    geometry = StackGeometry(layer, Smoothing(2, keep=True), Smoothing(3, keep=True))
    state, batch = new_state(geometry), random_map(layer.input, images)
    expected = reference.objective(state.filters, state.alpha, batch, geometry, 0.3, 1e-3)
    report = ops.stack_step(state, batch, geometry, OBJECTIVE, ops.StepRule(rate=0.05))
    torch.testing.assert_close(report.loss, expected)
    assert state.filters.isfinite().all()


def test_float32_steps_stay_near_float64_steps() -> None:
    wide, narrow = new_state(PLAIN), new_state(PLAIN, torch.float32)
    batch, rule = random_map(PLAIN.input, 4), ops.StepRule(rate=0.1)
    for _ in range(5):
        a = ops.stack_step(wide, batch, PLAIN, OBJECTIVE, rule)
        b = ops.stack_step(narrow, batch.float(), PLAIN, OBJECTIVE, rule)
    torch.testing.assert_close(b.loss, a.loss, rtol=1e-4, atol=0)
    torch.testing.assert_close(narrow.filters.double(), wide.filters, rtol=0, atol=1e-4)


def test_a_step_never_holds_the_whole_gradient() -> None:
    geometry = replace(PLAIN, filters=BlockLocal(MapShape(3, 40, 40), Window(20, 4), Window(20, 4), 4, 4, 8))
    state = new_state(geometry, torch.float32)
    batch = random_map(geometry.input, 2, dtype=torch.float32)
    largest = 0
    with torch.profiler.profile(profile_memory=True) as profile:
        ops.stack_step(state, batch, geometry, OBJECTIVE, ops.StepRule(rate=0.1))
    held = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            largest = max(largest, held)
    row = state.filters[0].numel() * 4
    assert state.filters.numel() * 4 > 4 * row
    assert 0 < largest < row + 0.1 * 2 * 4 * state.filters.numel()


def test_what_does_not_fit_is_refused_in_a_sentence() -> None:
    state = new_state(PLAIN)
    with pytest.raises(UserError, match="empty batch"):
        ops.stack_step(state, random_map(PLAIN.input, 0), PLAIN, OBJECTIVE, STILL)
    with pytest.raises(GeometryError, match="needs maps"):
        ops.stack_step(state, random_map(PADDED.input, 2), PLAIN, OBJECTIVE, STILL)
    with pytest.raises(GeometryError, match="needs filters"):
        ops.calibrate(
            replace(state, filters=random_weights(ODD)), random_map(PLAIN.input, 2), PLAIN, OBJECTIVE
        )


def step_of(state: ops.StackState, batch: Tensor, **others: Any) -> None:
    ops.stack_step(state, batch, PLAIN, OBJECTIVE, ops.StepRule(rate=0.1), **others)


@pytest.mark.parametrize(
    "spoilt",
    [
        lambda state, x: step_of(state, x.float()),
        lambda state, x: step_of(replace(state, momentum=state.momentum[:1]), x),
        lambda state, x: step_of(replace(state, norms=state.norms[:, 1:]), x),
        lambda state, x: step_of(state, x, upstream=torch.zeros(5, 3, 2, 2).double()),
        lambda state, x: step_of(state, x, upstream=random_map(PLAIN.output, 4)),
        lambda state, x: step_of(state, x, upstream=random_map(PLAIN.output, 5).float()),
    ],
    ids=["batch", "momentum", "norms", "above", "images above", "type above"],
)
def test_what_does_not_fit_is_refused_before_anything_moves(
    spoilt: Callable[[ops.StackState, Tensor], None],
) -> None:
    state, batch = new_state(PLAIN), random_map(PLAIN.input, 5)
    before = state.filters.clone()
    with pytest.raises((GeometryError, UserError)):
        spoilt(state, batch)
    assert torch.equal(state.filters, before)


@pytest.fixture
def _another_default_device() -> Iterator[None]:
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@pytest.mark.parametrize("by", ["", "torch"], ids=["kernels", "torch"])
def test_a_step_on_the_cpu_is_the_same_whatever_the_default_device(
    by: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("COTSWOLD_KERNELS", by)
    batch, above = random_map(PADDED.input, 40), random_map(PADDED.output, 40, seed=3)
    states = [new_state(PADDED), new_state(PADDED)]
    contrast._bands.cache_clear()  # what it holds was made on the default device of its time
    losses = []
    for state in states:
        ops.calibrate(state, batch, PADDED, OBJECTIVE)
        report = ops.stack_step(state, batch, PADDED, OBJECTIVE, ops.StepRule(2.0), upstream=above)
        losses.append(report.loss)
        contrast._bands.cache_clear()
        if state is states[0]:
            request.getfixturevalue("_another_default_device")
    assert states[1].filters.device.type == "cpu"
    assert torch.equal(states[0].filters, states[1].filters) and torch.equal(*losses)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_filters_learn_as_wide_ones_do_though_each_step_is_below_their_precision(
    dtype: torch.dtype,
) -> None:
    rule, batch = ops.StepRule(2e-4, momentum=0.0), random_map(PLAIN.input, 5)
    narrow, wide = new_state(PLAIN, dtype), new_state(PLAIN, torch.float32)
    assert narrow.master_filters is not None
    wide.filters.copy_(narrow.filters)
    wide.norms.copy_(narrow.norms)
    first = narrow.master_filters.clone()
    for _ in range(40):
        ops.stack_step(narrow, batch.to(dtype), PLAIN, OBJECTIVE, rule)
        ops.stack_step(wide, batch.float(), PLAIN, OBJECTIVE, rule)
    moved = (wide.filters - first).norm()
    assert (narrow.master_filters - wide.filters).norm() < 0.2 * moved
    assert torch.equal(narrow.filters, narrow.master_filters.to(dtype))


def test_narrow_filters_without_wide_copies_are_refused() -> None:
    state = new_state(PLAIN, torch.bfloat16)
    state.master_filters = None
    with pytest.raises(
        UserError, match=r"steps are smaller than their precision.*master_filters=filters.float"
    ):
        ops.stack_step(state, random_map(PLAIN.input, 5).bfloat16(), PLAIN, OBJECTIVE, STILL)
