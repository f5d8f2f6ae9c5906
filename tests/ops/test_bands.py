from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.kernels.cuda_layers import ENVIRONMENT, NO_DEVICE, NO_TRITON, ROOT
from tests.support.ops.layers import DEEP, ODD, WIDE, layers, random_map
from torch import Tensor

from cotswold import ops
from cotswold.geometry import BlockLocal, Box
from cotswold.kernels.cuda import launch
from cotswold.ops import bands, step
from cotswold.ops.memory_format import images_last

RULE = ops.StepRule(rate=0.7, momentum=0.8)
Pairs = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]


def state_of(layer: BlockLocal, dtype: torch.dtype) -> ops.StackState:
    filters = 1.3 * ops.random_filters(layer, 1, 0, dtype=torch.float64)
    masters = filters.float() if dtype in (torch.bfloat16, torch.float16) else None
    momentum = 0.01 * torch.randn_like(filters).to(dtype if masters is None else torch.float32)
    norms = ops.filter_norms(filters).to(momentum.dtype)
    return ops.StackState(
        filters.to(dtype), norms, momentum, torch.tensor(0.7).double(), torch.ones(()), masters
    )


def pairs_of(layer: BlockLocal, images: int, dtype: torch.dtype) -> Pairs:
    def drawn(seed: int) -> tuple[Tensor, Tensor]:
        y = images_last(random_map(layer.output, images, seed=seed, dtype=dtype))
        return y, images_last(random_map(layer.input, images, seed=seed + 1, dtype=dtype))

    return drawn(3), drawn(5)


def copied(state: ops.StackState) -> ops.StackState:
    masters = state.master_filters
    return replace(
        state,
        filters=state.filters.clone(),
        norms=state.norms.clone(),
        momentum=state.momentum.clone(),
        master_filters=None if masters is None else masters.clone(),
    )


def check(layer: BlockLocal, images: int, dtype: torch.dtype, rtol: float) -> None:
    state, (decoding, encoding) = state_of(layer, dtype), pairs_of(layer, images, dtype)
    plain = copied(state)
    bands.move_by_bands(state, layer, decoding, encoding, RULE)
    step._move_plainly(plain, layer, decoding, encoding, RULE)
    assert not torch.equal(state.filters, state_of(layer, dtype).filters)
    for name in ("filters", "norms", "momentum", "master_filters"):
        ours, theirs = getattr(state, name), getattr(plain, name)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("elements", [1, 300, 2000, 1 << 26])
@pytest.mark.parametrize("layer", [ODD, DEEP, WIDE], ids=["odd", "deep", "wide"])
def test_bands_of_any_size_move_filters_as_single_runs_do(
    layer: BlockLocal, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bands, "BAND_ELEMENTS", elements)
    check(layer, 5, torch.float64, 1e-12)


@given(layers(), st.integers(1, 4), st.integers(0, 12).map(lambda power: 1 << power))
@settings(max_examples=40)
def test_bands_of_any_layer_move_filters_as_single_runs_do(
    layer: BlockLocal, images: int, elements: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bands, "BAND_ELEMENTS", elements)
        check(layer, images, torch.float64, 1e-11)


def test_narrow_filters_move_with_their_wide_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bands, "BAND_ELEMENTS", 2000)
    check(WIDE, 5, torch.bfloat16, 2**-7)
    state, pairs = state_of(WIDE, torch.bfloat16), pairs_of(WIDE, 5, torch.bfloat16)
    bands.move_by_bands(state, WIDE, *pairs, RULE)
    assert state.master_filters is not None
    assert torch.equal(state.filters, state.master_filters.bfloat16())


def test_float16_filters_move_without_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bands, "has_cuda_kernel", lambda x: x.dtype in launch.DTYPES)
    check(WIDE, 5, torch.float16, 2**-9)


@NO_TRITON
def test_bands_move_filters_by_the_kernel_as_by_the_rule() -> None:
    """Run in a separate process, because Triton interprets only if it was asked to at its first import."""
    code = (
        "import torch\n"
        "from unittest.mock import patch\n"
        "from tests.ops.test_bands import ODD, WIDE, bands, check\n"
        "from cotswold.kernels.cuda import updates\n"
        "kernel = patch.object(bands, 'has_cuda_kernel', return_value=True)\n"
        "with kernel, patch.object(bands, 'BAND_ELEMENTS', 9000):\n"
        "    with patch.object(updates._UPDATE.__class__, 'start', autospec=True,\n"
        "                      side_effect=updates._UPDATE.__class__.start) as started:\n"
        "        check(ODD, 5, torch.float64, 1e-12)\n"
        "        check(WIDE, 5, torch.bfloat16, 2**-7)\n"
        "assert started.call_count >= 4, started.call_count\n"
    )
    environment = {**ENVIRONMENT, "TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=ROOT, timeout=120)


@given(layers(), st.integers(1, 5000))
def test_boxes_cover_the_blocks_once_and_fit_the_bound(layer: BlockLocal, elements: int) -> None:
    block = layer.fan_in * layer.neurons
    found = list(bands.bands(layer, elements))
    counts = torch.zeros(layer.grid)
    for box in found:
        counts[box.slices] += 1
        assert box.size * block <= max(elements, block)
        assert box.shape[0] == 1 or box.shape[1] == layer.grid[1]
    assert bool((counts == 1).all())


def test_a_bound_that_holds_the_layer_gives_one_box() -> None:
    assert list(bands.bands(ODD, 1 << 26)) == [Box.whole(ODD.grid)]
    row = ODD.grid[1] * ODD.fan_in * ODD.neurons
    assert [box.shape[0] for box in bands.bands(ODD, row)] == [1] * ODD.grid[0]


def test_filters_on_the_cpu_do_not_move_by_bands() -> None:
    assert not bands.can_move_by_bands(state_of(ODD, torch.float64))


@pytest.mark.cuda
@NO_DEVICE
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_device_moves_filters_by_bands_as_the_cpu_does(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bands, "BAND_ELEMENTS", 2000)
    state, (decoding, encoding) = state_of(WIDE, dtype), pairs_of(WIDE, 16, dtype)
    masters = state.master_filters
    there = replace(
        state,
        filters=state.filters.cuda(),
        norms=state.norms.cuda(),
        momentum=state.momentum.cuda(),
        alpha=state.alpha.cuda(),
        master_filters=None if masters is None else masters.cuda(),
    )
    assert bands.can_move_by_bands(there)
    moved = [tuple(images_last(one.cuda()) for one in pair) for pair in (decoding, encoding)]
    step._move_filters(there, WIDE, moved[0], moved[1], RULE)  # type: ignore[arg-type]  # tuples of two tensors
    step._move_plainly(state, WIDE, decoding, encoding, RULE)
    rtol = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2**-7}[dtype]
    for name in ("filters", "norms", "momentum"):
        ours, theirs = getattr(there, name).cpu(), getattr(state, name)
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=rtol)
