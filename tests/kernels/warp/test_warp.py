"""Kernels that move pixels give the bits of the NumPy code, on every vector and for every shape."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llvmlite import binding as llvm
from numpy.typing import NDArray
from tests.support.kernels.operations import processors
from tests.support.kernels.processors import ARM

from cotswold.data.augment import warp
from cotswold.kernels.available import WrongKernelError
from cotswold.kernels.compile import engine, library
from cotswold.kernels.compile.emit import Lanes
from cotswold.kernels.machine.processor import Processor, this_processor
from cotswold.kernels.products.problem import Overrides
from cotswold.kernels.warp import PADDING_MODES, Field, Images, PaddingMode, passes, run
from cotswold.kernels.warp.write import write_warp

Float32 = NDArray[np.float32]
SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 45), st.integers(1, 45))


def guarded(values: Float32) -> Float32:
    """Return the same numbers surrounded by NaN."""
    around = np.full(values.size + 200, np.nan, np.float32)
    inside = around[100:-100].reshape(values.shape)
    inside[...] = values
    return inside


def random_images(
    shape: tuple[int, int, int, int], fill: PaddingMode, sigma: float | None, seed: int, spread: float = 0.4
) -> Images:
    """Return random images and maps of a given ``spread``, and a field if ``sigma`` is given."""
    chance = np.random.default_rng(seed)
    images = shape[0]
    values = guarded(chance.standard_normal(shape).astype(np.float32))
    maps = np.eye(2, 3) + spread * chance.standard_normal((images, 2, 3))
    maps[:, :, 2] *= 10
    field = None
    if sigma is not None:
        drawn = chance.integers(0, 1 << 64, images, np.uint64)
        field = warp.field(
            drawn, int(chance.integers(100)), sigma, 20 * chance.standard_normal((images, 2, 2))
        )
    return Images(values, maps.astype(np.float32), field, fill)


def check(asked: Images, processor: Processor | None = None) -> None:
    found = run(asked, warp.warp_reference, Overrides(processor))
    assert found.dtype == np.float32 and not np.isnan(found).any()
    assert found.tobytes() == warp.warp_reference(asked).tobytes()


@pytest.mark.parametrize("processor", processors(), ids=lambda one: one.isa)
@pytest.mark.parametrize("fill", PADDING_MODES)
@given(SHAPES, st.none() | st.floats(0.2, 12.0), st.integers(0, 1000))
@settings(max_examples=40)
def test_every_shape_has_the_bits_of_numpy(
    processor: Processor, fill: PaddingMode, shape: tuple[int, int, int, int], sigma: float | None, seed: int
) -> None:
    check(random_images(shape, fill, sigma, seed), processor)


@pytest.mark.parametrize("sigma", [None, 4.0])
@pytest.mark.parametrize("fill", PADDING_MODES)
@pytest.mark.parametrize("shape", [(3, 1, 28, 28), (2, 3, 32, 32), (1, 3, 97, 131), (2, 4, 1, 1)], ids=str)
def test_usual_images_have_the_bits_of_numpy(
    fill: PaddingMode, sigma: float | None, shape: tuple[int, int, int, int]
) -> None:
    check(random_images(shape, fill, sigma, 5))


@pytest.mark.parametrize("fill", PADDING_MODES)
@pytest.mark.parametrize("spread", [1e3, 1e7, 1e20])
def test_places_far_outside_stay_in_the_image(fill: PaddingMode, spread: float) -> None:
    check(random_images((4, 2, 19, 23), fill, None, 6, spread))


@pytest.mark.parametrize("fill", PADDING_MODES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_maps_that_are_no_numbers_read_nothing_outside(fill: PaddingMode, value: float) -> None:
    asked = random_images((2, 1, 20, 20), fill, None, 7)
    asked.maps[0] = value
    right = warp.warp_reference(Images(asked.values[1:], asked.maps[1:], None, fill))
    assert run(asked, warp.warp_reference)[1:].tobytes() == right.tobytes()


@pytest.mark.parametrize("fill", PADDING_MODES)
def test_a_zero_has_the_same_sign(fill: PaddingMode) -> None:
    asked = random_images((2, 1, 18, 18), fill, None, 8)
    asked.values[...] = -0.0
    check(asked)


def test_whole_pixels_are_moved_as_they_are() -> None:
    asked = random_images((1, 2, 21, 30), "zero", None, 9)
    asked.maps[0] = [[1, 0, 2], [0, -1, 3]]
    expected = np.zeros_like(asked.values)
    expected[0, :, :19, 3:] = asked.values[0, :, 2:, ::-1][:, :, :27]
    assert np.array_equal(run(asked, warp.warp_reference), expected)


def test_a_kernel_that_computes_wrongly_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = random_images((1, 1, 4, 4), "edge", None, 10)
    monkeypatch.setattr(library, "_ADDRESSES", {})
    monkeypatch.setattr("cotswold.kernels.compile.code_cache.load", lambda _: None)
    monkeypatch.setattr("cotswold.kernels.compile.code_cache.save", lambda *_: None)
    with pytest.raises(WrongKernelError, match="warp edge map"):
        run(asked, lambda one: np.nextafter(warp.warp_reference(one), np.float32(9)))


def test_where_a_kernel_is_wrong_numpy_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = random_images((2, 2, 9, 9), "reflect", 2.0, 11)
    tried = []

    def wrong(*_: object) -> Float32:
        tried.append(1)
        raise WrongKernelError("the kernel warp computes wrongly")

    monkeypatch.setattr("cotswold.kernels.available._failures", [])
    monkeypatch.setattr(passes, "_run", wrong)
    with pytest.warns(RuntimeWarning, match="computes wrongly"):
        found = warp.warped(asked.values, asked.maps.astype(np.float64), asked.field, "reflect")
    again = warp.warped(asked.values, asked.maps.astype(np.float64), asked.field, "reflect")
    assert found.tobytes() == again.tobytes() == warp.warp_reference(asked).tobytes() and len(tried) == 1


def test_a_field_asks_for_no_more_scratch_than_it_has() -> None:
    """With a margin too wide, a sum would read data of another image."""
    small = random_images((1, 1, 5, 3), "edge", 12.0, 12)
    large = random_images((1, 1, 45, 45), "edge", 12.0, 12)
    for asked in (large, small, large):
        check(asked)


@pytest.mark.parametrize("fill", PADDING_MODES)
def test_no_multiplication_is_fused_with_an_addition(fill: PaddingMode) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    for processor in (*processors(), ARM):
        lanes = Lanes("float32", processor.lanes("float32"))
        text = engine.assembly(write_warp(fill, True, lanes, processor.triple), processor)
        assert not re.findall(r"^\s+(?:vfn?m(?:add|sub)\w*|fn?m(?:add|sub|la|ls))\s", text, re.MULTILINE)


def test_the_field_has_no_more_taps_than_neighbours() -> None:
    """Use a Gaussian much wider than the image."""
    here = this_processor()
    assert here is not None
    asked = random_images((2, 1, 6, 40), "edge", 60.0, 13)
    assert isinstance(asked.field, Field) and len(asked.field.taps) == 481
    check(asked, here)
