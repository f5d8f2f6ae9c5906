from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.data.conftest import photograph

from cotswold.data import Preparation, Transform
from cotswold.data.preprocessing.images import estimate, spectra, unestimated_transform
from cotswold.data.preprocessing.whiteness import measure
from cotswold.data.preprocessing.whitening import (
    Whitening,
    cosine_radii,
    cosines,
    cross_spectra,
    filtered,
    knots,
    probe,
)
from cotswold.errors import UserError


def fitted(preparation: Preparation, pixels: NDArray[np.uint8]) -> Transform:
    return estimate(preparation, spectra(preparation, pixels), pixels[:64])


def photographs(first: int, count: int, size: tuple[int, int]) -> NDArray[np.uint8]:
    return np.stack([photograph(seed, *size) for seed in range(first, first + count)])


def radial(images: NDArray[np.float32]) -> NDArray[np.float64]:
    """Measure independently: plain periodograms, rings one cycle apart, decibels from 2 cycles to 0.35."""
    side = min(images.shape[2:])
    power = (np.abs(np.fft.fft2(images)) ** 2).mean((0, 1))
    radius = np.hypot(*np.meshgrid(*(np.fft.fftfreq(n) for n in images.shape[2:]), indexing="ij"))
    ring = np.rint(radius * side)
    means = np.array([power[ring == k].mean() for k in range(2, int(0.35 * side) + 1)])
    decibels: NDArray[np.float64] = 10 * np.log10(means / means.mean())
    return decibels


@pytest.mark.parametrize("unit_rms", [False, True])
@pytest.mark.parametrize("size", [(32, 32), (28, 44)])
def test_held_out_images_are_flat_and_their_colours_uncorrelated(
    unit_rms: bool, size: tuple[int, int]
) -> None:
    transform = fitted(Preparation(size, unit_rms=unit_rms), photographs(0, 600, size))
    held_out = transform.values(photographs(1000, 250, size))
    raw = Transform(Preparation(size, whiten=False)).values(photographs(1000, 250, size))
    assert np.abs(radial(raw)).max() > 5
    assert np.abs(radial(held_out)).max() < 1
    colours = np.corrcoef(held_out.transpose(1, 0, 2, 3).reshape(3, -1))
    assert np.abs(colours - np.eye(3)).max() < 0.05
    said = measure(held_out, 0.7)
    assert said.deviation < 1 and said.colour_correlation < 0.05
    assert abs(float(held_out.std()) - 1) < 0.1


def test_nothing_is_left_far_above_the_band() -> None:
    transform = fitted(Preparation((32, 32), whiten_cutoff=0.5), photographs(0, 200, (32, 32)))
    power = (np.abs(np.fft.fft2(transform.values(photographs(300, 50, (32, 32)))) * 1) ** 2).mean((0, 1))
    assert power[10:22, 10:22].max() < 0.01 * power[2:5, 2:5].mean()


def test_measure_tells_white_noise_from_pink() -> None:
    random = np.random.default_rng(0)
    white = random.standard_normal((400, 3, 24, 24)).astype(np.float32)
    flat = measure(white, 0.7)
    assert flat.deviation < 0.3 and flat.colour_correlation < 0.02 and flat.images == 400
    tilted = (white + 0.6 * white.mean(1, keepdims=True)).astype(np.float32)
    assert measure(tilted, 0.7).colour_correlation > 0.2
    smooth = ((white + np.roll(white, 1, -1)) / 2).astype(np.float32)
    assert measure(smooth, 0.7).deviation > 1


def test_a_filter_that_changes_nothing_changes_nothing() -> None:
    radii = knots(10, 14)
    nothing = Whitening(radii, np.broadcast_to(np.eye(3), (len(radii), 3, 3)))
    images = np.random.default_rng(0).standard_normal((4, 3, 10, 14)).astype(np.float32)
    np.testing.assert_allclose(filtered(images, nothing.frequency_matrices(10, 14)), images, atol=1e-5)


@pytest.mark.parametrize("size", [(10, 14), (63, 64), (64, 63), (90, 130)])
def test_the_fast_transform_and_the_product_filter_alike(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    grid = random.standard_normal((3, 3, size[0] - 3, size[1] - 5)).astype(np.float32)
    images = random.standard_normal((2, 3, *size)).astype(np.float32)
    monkeypatch.setattr("cotswold.data.preprocessing.whitening._FAST_FROM", 1)
    fast = filtered(images, grid)
    monkeypatch.setattr("cotswold.data.preprocessing.whitening._FAST_FROM", 1000)
    np.testing.assert_allclose(fast, filtered(images, grid), atol=2e-4)


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (24, 32), (80, 50), (200, 200)])
def test_a_few_coefficients_stand_for_all(size: tuple[int, int]) -> None:
    chosen = probe(*size)
    assert len(chosen.means) <= size[0] * size[1] / (1 if min(size) < 40 else 2)
    np.testing.assert_allclose(chosen.means.sum(0), 1, rtol=1e-5)
    np.testing.assert_allclose(chosen.share.sum(), 1)
    everywhere = cosine_radii(*size).mean()
    assert abs(float(chosen.share @ chosen.radii) - everywhere) < 0.05 * everywhere + 0.3 / min(size)
    white = np.random.default_rng(0).standard_normal((40, 3, *size)).astype(np.float32)
    mean = cross_spectra(white).mean(0)
    assert np.isfinite(mean).all()
    counted = chosen.share > 30 / (size[0] * size[1])
    np.testing.assert_allclose(mean[counted], np.broadcast_to(np.eye(3), mean[counted].shape), atol=0.5)


@given(values=st.lists(st.floats(-1e5, 1e5, width=32), min_size=1, max_size=50))
def test_stored_halves_are_as_near_as_halves_can_be(values: list[float]) -> None:
    images = np.array(values, np.float32).reshape(1, 1, 1, -1)
    stored = unestimated_transform(
        Preparation((1, len(values)), "grey", per_image_standardise=False, whiten=False)
    ).stored(images)
    clipped = np.clip(images, -65504, 65504)
    with np.errstate(over="ignore"):
        nearest = clipped.astype(np.float16)
    assert stored.dtype == np.float16
    distance = np.abs(stored.astype(np.float64) - clipped)
    np.testing.assert_array_equal(distance, np.abs(nearest.astype(np.float64) - clipped))


@pytest.mark.parametrize("extent", [1, 2, 7, 48])
def test_cosines_are_orthonormal(extent: int) -> None:
    np.testing.assert_allclose(cosines(extent) @ cosines(extent).T, np.eye(extent), atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    size=st.tuples(st.integers(1, 17), st.integers(1, 17)),
    count=st.integers(1, 5),
    colour=st.sampled_from(["rgb", "grey"]),
    per_image_standardise=st.booleans(),
    unit_rms=st.booleans(),
    dtype=st.sampled_from(["float16", "uint8"]),
    whiten_cutoff=st.floats(0.05, 1),
    seed=st.integers(0, 99),
    flat=st.booleans(),
)
def test_any_set_gives_finite_numbers_that_survive_storing(
    size: tuple[int, int],
    count: int,
    colour: str,
    per_image_standardise: bool,
    unit_rms: bool,
    dtype: str,
    whiten_cutoff: float,
    seed: int,
    flat: bool,
) -> None:
    chosen = Preparation(size, colour, per_image_standardise, True, whiten_cutoff, unit_rms, dtype)  # type: ignore[arg-type]  # drawn
    shape = (count, *size, chosen.shape.channels)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    if flat:
        pixels[:] = pixels[0, 0, 0, 0]
    transform = fitted(chosen, pixels)
    values = transform.values(pixels)
    assert values.shape == (count, chosen.shape.channels, *size)
    assert np.isfinite(values).all()
    if unit_rms:
        power = (values**2).mean((1, 2, 3))
        assert (np.isclose(power, 1, atol=1e-3) | (power < 1.001)).all()
    again = transform.restored(transform.stored(values))
    clipped = np.clip(values, -128 * transform.scale, 127 * transform.scale) if dtype == "uint8" else values
    np.testing.assert_allclose(
        again, clipped, atol=0.51 * transform.scale if dtype == "uint8" else 0.02, rtol=1e-3
    )


def test_grey_images_in_a_colour_set_stay_finite_and_white() -> None:
    grey = photographs(0, 300, (24, 24)).mean(-1, keepdims=True).astype(np.uint8).repeat(3, -1)
    values = fitted(Preparation((24, 24)), grey).values(grey)
    assert np.isfinite(values).all()
    assert np.ptp(values, axis=1).max() < 0.05, "the channels of a grey image are equal"
    assert measure(values[:, :1], 0.7).deviation < 1


def test_plain_images_keep_their_values_in_both_dtypes() -> None:
    pixels = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1)
    for dtype in ("float16", "uint8"):
        chosen = Preparation((16, 16), "grey", per_image_standardise=False, whiten=False, dtype=dtype)
        transform = unestimated_transform(chosen)
        again = transform.restored(transform.stored(transform.values(pixels)))
        np.testing.assert_allclose(again.reshape(-1), np.arange(256) / 255, atol=3e-4)


def test_one_image_and_a_batch_are_transformed_alike() -> None:
    from PIL import Image

    pixels = photographs(0, 40, (20, 30))
    transform = fitted(Preparation((20, 30)), pixels)
    alone = transform(Image.fromarray(pixels[7]))
    assert alone.shape == (3, 20, 30)
    np.testing.assert_allclose(alone, transform.values(pixels)[7], atol=1e-4)


def test_a_transform_goes_through_json_without_loss() -> None:
    pixels = photographs(0, 30, (12, 12))
    for dtype in ("float16", "uint8"):
        transform = fitted(Preparation((12, 12), unit_rms=True, dtype=dtype), pixels)
        again = Transform.from_state(json.loads(json.dumps(transform.state())))
        assert again.preparation == transform.preparation
        assert (again.values(pixels) == transform.values(pixels)).all()
        assert (again.scale, again.offset) == (transform.scale, transform.offset)


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": (0, 5)},
        {"whiten_cutoff": 0.0},
        {"whiten_cutoff": 1.1},
        {"colour": "red"},
        {"dtype": "float8"},
    ],
)
def test_impossible_preparations_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError):
        Preparation(**wrong)  # type: ignore[arg-type]  # wrong on purpose
