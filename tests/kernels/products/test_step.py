from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.products.test_bits import in_a_larger_map
from tests.support.kernels.operations import DTYPES, Dense, forced, processors, same_bits
from tests.support.ops.layers import DEEP, ODD, SPARSE, WIDE, layers, random_map, random_weights
from torch import Tensor

from cotswold import ops
from cotswold.geometry import BlockLocal, MapShape, Smoothing, StackGeometry, Window
from cotswold.kernels.machine.processor import Processor
from cotswold.kernels.products import run as kernels
from cotswold.kernels.products.problem import NO_OVERRIDES, Overrides
from cotswold.ops import sgd_rule as rules
from cotswold.ops import step

BROAD = BlockLocal(MapShape(23, 5, 5), Window(5), Window(5), rows=1, columns=1, depth=203)
"""One block, whose neurons are divided into several tasks."""
ROW = BlockLocal(MapShape(3, 6, 20), Window(6), Window(5, 3, 1, 1), rows=2, columns=2, depth=10)
"""One row of blocks; the blocks at both ends meet padding."""
FIXED = {"odd": ODD, "wide": WIDE, "deep": DEEP, "sparse": SPARSE, "row": ROW, "broad": BROAD}
TILES = [(1, 1), (5, 3), (8, 3)]
SETTINGS = st.tuples(st.sampled_from(processors()), st.sampled_from(TILES), st.integers(1, 3))
"""A processor, a tile, threads."""
FAR = ops.StepRule(rate=50.0, momentum=0.9, longest=0.01)
"""A rule that moves every filter beyond its limit."""
NEAR = ops.StepRule(rate=1e-3, momentum=0.7, longest=10.0)
"""A rule that moves no filter beyond its limit."""
ALPHA = torch.tensor(0.6, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Case:
    """All inputs of a step, and the tensors that it changes."""

    decoding: tuple[Tensor, Tensor]
    encoding: tuple[Tensor, Tensor]
    filters: Tensor
    momentum: Tensor
    norms: Tensor

    @classmethod
    def of(cls, layer: BlockLocal, images: int, dtype: torch.dtype, seed: int = 0) -> Case:
        """Draw Gaussian values, with filter norms other than 1 and momentum everywhere, also in the
        padding.
        """
        maps = [
            ops.images_last(random_map(shape, images, seed + i, dtype))
            for i, shape in enumerate((layer.output, layer.input, layer.output, layer.input))
        ]
        filters = random_weights(layer, seed + 5, dtype)
        momentum = random_weights(layer, seed + 6, dtype) / 50
        norms = filters.double().square().sum((2, 3)).sqrt().to(dtype)
        return cls((maps[0], maps[1]), (maps[2], maps[3]), filters, momentum, norms)

    @property
    def moved(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the tensors that a step changes."""
        return self.filters, self.momentum, self.norms

    def copy(self) -> Case:
        """Return a copy for separate changes."""
        return replace(
            self, filters=self.filters.clone(), momentum=self.momentum.clone(), norms=self.norms.clone()
        )

    def gradient(self, layer: BlockLocal) -> Tensor:
        """Return the sum of both products in float64, 0 for weights that meet only padding."""
        total = torch.zeros(layer.filters_shape, dtype=torch.float64)
        for delta, x in (self.decoding, self.encoding):
            total += Dense.of(layer).product("outer", (delta.double(), x.double())).nan_to_num()
        return total

    def sizes(self, layer: BlockLocal) -> Tensor:
        """Return the size of the terms of the gradient's sums: the root of the sum of their squares."""
        total = torch.zeros(layer.filters_shape, dtype=torch.float64)
        for delta, x in (self.decoding, self.encoding):
            squares = delta.double().square(), x.double().square()
            total += Dense.of(layer).product("outer", squares).nan_to_num()
        return total.sqrt()


def stepped(case: Case, layer: BlockLocal, rule: ops.StepRule, free: Overrides = NO_OVERRIDES) -> Case:
    """Return a copy after a step by the kernel."""
    found = case.copy()
    rate = rule.rate / (float(ALPHA) * layer.fan_in)
    constants = torch.tensor([rule.momentum, rate, rule.longest], dtype=torch.float64)
    first, second = ((delta, x) for delta, x in (found.decoding, found.encoding))
    kernels.step(first, second, layer, found.moved, constants, free)
    return found


def plainly(case: Case, layer: BlockLocal, rule: ops.StepRule) -> Case:
    """Return a float64 copy after a step by the rule, from the complete gradient."""
    gradient = case.gradient(layer)
    found = replace(case, **{name: getattr(case, name).double() for name in ("filters", "momentum", "norms")})
    found = found.copy()
    for y in range(layer.grid[0]):
        rules.filter_step(found.filters[y], found.norms[y], found.momentum[y], gradient[y], ALPHA, rule)
    return found


def check(case: Case, layer: BlockLocal, rule: ops.StepRule, free: Overrides = NO_OVERRIDES) -> Case:
    """Step, and compare with the rule; the tolerance follows from the sizes of the terms."""
    found, expected = stepped(case, layer, rule, free), plainly(case, layer, rule)
    images, dtype = case.decoding[0].shape[0], case.filters.dtype
    part = torch.finfo(dtype).eps * (8 + (images + layer.fan_in) ** 0.5)
    norms, rate = lengths(case.filters), rule.rate / (float(ALPHA) * layer.fan_in)
    added = rule.momentum * lengths(case.momentum) + rate * lengths(case.sizes(layer)) / norms
    # what makes a step shorter makes its errors so, too
    whole = lengths(plainly(case, layer, replace(rule, longest=1e30)).momentum)
    in_momentum = part * added * (rule.longest * norms / whole).clamp_max(1)
    in_filters = part + in_momentum / lengths(case.filters.double() + expected.momentum)
    for ours, theirs, most in (
        (found.momentum, expected.momentum, in_momentum[:, :, None, None]),
        (found.filters, expected.filters, in_filters[:, :, None, None]),
        (found.norms, expected.norms, torch.tensor(part)),
    ):
        assert ours.dtype == dtype and ours.isfinite().all()
        assert ((ours.double() - theirs).abs() <= most).all()
    return found


def lengths(x: Tensor) -> Tensor:
    return x.double().square().sum((2, 3)).sqrt()


def same(first: Case, second: Case) -> bool:
    return all(same_bits(*pair) for pair in zip(first.moved, second.moved, strict=True))


@pytest.mark.parametrize("rule", [FAR, NEAR], ids=["too far", "near"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("images", [1, 17, 96, 385, 900])
@pytest.mark.parametrize("name", FIXED)
def test_a_step_moves_filters_momentum_and_norms_by_the_rule(
    name: str, images: int, dtype: torch.dtype, rule: ops.StepRule
) -> None:
    layer = FIXED[name]
    case = Case.of(layer, images, dtype)
    found = check(case, layer, rule)
    step_lengths, before = lengths(found.momentum), lengths(case.filters)
    if rule is FAR:
        torch.testing.assert_close(step_lengths, FAR.longest * before, rtol=1e-5, atol=0)
    else:
        assert (step_lengths < 0.9 * NEAR.longest * before).all()
    torch.testing.assert_close(lengths(found.filters), torch.ones_like(before), rtol=0, atol=1e-6)


@pytest.mark.usefixtures("any_work_is_worth_threads")
@pytest.mark.parametrize("dtype", DTYPES)
@given(layers(), st.integers(1, 40), SETTINGS, st.sampled_from([FAR, NEAR, ops.StepRule(2.0)]))
@settings(max_examples=40)
def test_a_step_of_any_layer_follows_the_rule_and_has_the_same_bits(
    dtype: torch.dtype,
    layer: BlockLocal,
    images: int,
    setting: tuple[Processor, tuple[int, int], int],
    rule: ops.StepRule,
) -> None:
    processor, tile, threads = setting
    case = Case.of(layer, images, dtype)
    found = check(case, layer, rule, forced(*tile, threads, processor))
    assert same(found, stepped(case, layer, rule, forced(1, 1)))


@pytest.mark.usefixtures("any_work_is_worth_threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("images", [17, 385])
@pytest.mark.parametrize("name", FIXED)
def test_every_tile_vector_and_number_of_threads_gives_the_same_bits(
    name: str, images: int, dtype: torch.dtype
) -> None:
    layer, rule = FIXED[name], ops.StepRule(2.0)
    case = Case.of(layer, images, dtype)
    expected = stepped(case, layer, rule, forced(1, 1))
    assert not same(expected, case)
    for processor in processors():
        for tile in TILES:
            for threads in (1, 2, 3):
                found = stepped(case, layer, rule, forced(*tile, threads, processor))
                assert same(found, expected), (processor.isa, tile, threads)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("neurons", [1, 7, 16, 33, 64, 70, 130])
def test_any_number_of_neurons_moves_all_of_them_and_no_other(neurons: int, dtype: torch.dtype) -> None:
    layer = BlockLocal(MapShape(2, 3, 5), Window(3), Window(3, 2), rows=1, columns=1, depth=neurons)
    case = Case.of(layer, 9, dtype)
    for processor in processors():
        check(case, layer, FAR, forced(5, 3, processor=processor))


def test_maps_with_numbers_between_give_the_same_bits() -> None:
    for layer in (ODD, WIDE):
        case = Case.of(layer, 19, torch.float32)
        expected = stepped(case, layer, FAR)
        pairs = [
            (in_a_larger_map(delta, 2, 5), in_a_larger_map(x, 3, 1))
            for delta, x in (case.decoding, case.encoding)
        ]
        apart = replace(case, decoding=pairs[0], encoding=pairs[1])
        assert same(stepped(apart, layer, FAR), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_filter_of_zeros_stays_so_and_its_neighbours_do_not_mind(dtype: torch.dtype) -> None:
    case = Case.of(WIDE, 17, dtype)
    expected = stepped(case, WIDE, NEAR)
    case.filters[0, 1, ..., 2] = 0
    case.norms[0, 1, 2] = 0
    found = stepped(case, WIDE, NEAR)
    assert (found.filters[0, 1, ..., 2] == 0).all() and float(found.norms[0, 1, 2]) == 0
    assert (found.momentum[0, 1, ..., 2] == 0).all()
    expected.filters[0, 1, ..., 2], expected.momentum[0, 1, ..., 2], expected.norms[0, 1, 2] = 0, 0, 0
    for ours, theirs in zip(found.moved, expected.moved, strict=True):
        assert torch.equal(ours, theirs)  # 0 of either sign


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("above", [False, True], ids=["alone", "losses above"])
@pytest.mark.parametrize("name", ["odd", "wide", "row"])
def test_a_whole_step_of_a_stack_is_the_same_by_the_plain_path(
    name: str, above: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = FIXED[name]
    geometry = StackGeometry(layer, Smoothing(2, keep=True), Smoothing(3, keep=True))
    objective, rule = ops.StackObjective(0.3, 1e-3), ops.StepRule(2.0)
    filters = ops.random_filters(layer, 0, 0, dtype=dtype)
    momentum = torch.where(filters == 0, 0, random_weights(layer, 3, dtype) / 100)
    batch = random_map(layer.input, 21, 1, dtype)
    upstream = 0.1 * random_map(geometry.output, 21, 4, dtype) if above else None

    def trained() -> tuple[Tensor, ...]:
        state = ops.StackState(
            filters.clone(),
            ops.filter_norms(filters),
            momentum.clone(),
            torch.tensor(0.7, dtype=torch.float64),
            torch.ones(()).double(),
        )
        for _ in range(3):
            ops.stack_step(state, batch, geometry, objective, rule, upstream=upstream)
        return state.filters, state.momentum, state.norms, state.alpha

    found = trained()
    monkeypatch.setattr(step, "has_cpu_kernel", lambda x: False)
    tight = 1e-12 if dtype == torch.float64 else 1e-5
    for ours, theirs in zip(found, trained(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tight, atol=tight)
