from __future__ import annotations

import hashlib

import numpy as np
import pytest
from scipy import ndimage

from cotswold.data.datasets.japanese_ocr import samples as module
from cotswold.data.datasets.japanese_ocr.printing import SIDE, Bits, packed, unpacked
from cotswold.data.datasets.japanese_ocr.samples import (
    GreySamples,
    dilate,
    downscale,
    erode,
    generate_samples,
)
from cotswold.errors import UserError


def scans(count: int = 37, seed: int = 0) -> Bits:
    """Return blots with a margin."""
    random = np.random.default_rng(seed)
    smooth = ndimage.gaussian_filter(random.standard_normal((count, SIDE, SIDE)), (0, 3, 3))
    smooth[:, :6] = smooth[:, -6:] = smooth[:, :, :6] = smooth[:, :, -6:] = -1
    return packed(smooth > 0.02)


def images(these: GreySamples) -> np.typing.NDArray[np.int64]:
    return these.reshape(-1, 20, 20).astype(np.int64)


def test_a_pattern_is_the_same_alone_in_any_order_and_in_any_batch() -> None:
    originals, numbers = scans(), np.arange(2000)
    all_of_them = generate_samples(originals, numbers, seed=3)
    shuffled = np.random.default_rng(1).permutation(2000)
    assert (generate_samples(originals, shuffled, seed=3) == all_of_them[shuffled]).all()
    for number in (0, 36, 37, 999, 1999):
        assert (generate_samples(originals, np.array([number]), seed=3)[0] == all_of_them[number]).all()


def test_patterns_far_beyond_the_millions_are_made_as_any_other() -> None:
    far = np.array([9_263_999, 10**12])
    assert generate_samples(scans(), far, seed=3).std(1).min() > 0


def test_patterns_have_the_same_bits_on_every_processor() -> None:
    found = generate_samples(scans(), np.arange(4000), seed=3)
    assert hashlib.sha256(found.tobytes()).hexdigest()[:16] == "e3d218438af473e3"


def test_the_first_patterns_are_the_originals_as_they_are() -> None:
    assert (generate_samples(scans(), np.arange(37), seed=3) == downscale(scans())).all()
    assert (generate_samples(scans(), np.arange(37, 74), seed=3) != downscale(scans())).any(1).mean() > 0.95


def test_another_seed_gives_other_patterns() -> None:
    numbers = np.arange(37, 400)
    assert (generate_samples(scans(), numbers, 3) != generate_samples(scans(), numbers, 4)).any(
        1
    ).mean() > 0.95


def test_every_pattern_shows_its_own_original() -> None:
    """Blurred to reduce the effect of shifts and noise, most samples are nearest to their original."""
    originals, numbers = scans(), np.arange(37, 37 * 20)
    soft = ndimage.gaussian_filter(images(generate_samples(originals, numbers, 3)).astype(float), (0, 1, 1))
    wanted = ndimage.gaussian_filter(images(downscale(originals)).astype(float), (0, 1, 1))
    apart = ((soft[:, None] - wanted[None]) ** 2).sum((2, 3))
    assert (apart.argmin(1) == numbers % 37).mean() > 0.97


def test_a_scan_as_it_is_has_in_each_pixel_the_ink_of_its_area() -> None:
    """Compare with areas of fifths of a pixel: 20 cells of 16 fifths each are 64 pixels of 5 fifths."""
    fine = np.kron(unpacked(scans()), np.ones((1, 5, 5)))
    areas = fine.reshape(-1, 20, 16, 20, 16).mean((2, 4)) * 255
    assert abs(images(downscale(scans())) - areas).max() <= 2


def test_paper_stays_paper_and_ink_stays_ink() -> None:
    assert downscale(packed(np.zeros((1, 64, 64), bool))).max() == 0
    assert downscale(packed(np.ones((1, 64, 64), bool))).min() == 255


@pytest.mark.parametrize(("along_y", "along_x"), [(True, True), (True, False), (False, True)])
def test_thickening_and_thinning_are_dilation_and_erosion(along_y: bool, along_x: bool) -> None:
    ink = unpacked(scans()).astype(bool)
    shape = np.ones((1, 3 if along_y else 1, 3 if along_x else 1), bool)
    thick = ndimage.binary_dilation(ink, shape)
    thin = ndimage.binary_erosion(ink, shape, border_value=1)
    assert (unpacked(dilate(packed(ink), along_y, along_x)) == thick).all()
    assert (unpacked(erode(packed(ink), along_y, along_x)) == thin).all()


def test_thinning_never_takes_most_of_the_ink() -> None:
    lines = np.zeros((1, 64, 64), bool)
    lines[0, 10:50, ::6] = True  # one pixel wide: thinned along x nothing would be left
    found = generate_samples(packed(lines), np.arange(1, 600), seed=0).astype(float).sum(1)
    assert found.min() > 0.4 * downscale(packed(lines)).sum()


def test_every_kind_of_change_comes_as_often_as_it_should() -> None:
    draws = module._draw(np.arange(64_000), seed=5)
    for field, choices in (("weight", 8), ("shift_y", 17), ("shift_x", 17), ("blur", 4), ("specks", 4)):
        counts = np.bincount(getattr(draws, field).astype(np.int64), minlength=choices)
        assert len(counts) == choices
        assert abs(counts / 64_000 - 1 / choices).max() < 0.01, field
    pairs = np.corrcoef([getattr(draws, name).astype(float) for name in vars(draws)])
    assert abs(pairs - np.eye(len(pairs))).max() < 0.02


def test_a_shift_moves_the_ink_and_a_blur_keeps_its_sum() -> None:
    dot = np.zeros((1, 64, 64), bool)
    dot[0, 30:34, 30:34] = True
    one = np.ones(1, np.uint64)
    centre = [
        ndimage.center_of_mass(images(module._reduce(packed(dot), 8 * one, at * one, 0 * one))[0])
        for at in (0, 8, 16)
    ]
    assert np.allclose([y for y, _ in centre], 9.5, atol=0.05)
    assert np.allclose([x for _, x in centre], [8.5, 9.5, 10.5], atol=0.05)
    sums = [module._reduce(packed(dot), 8 * one, 8 * one, blur * one).sum() for blur in range(4)]
    assert np.ptp(sums) < 40 < sums[0]
    assert module._reduce(packed(dot), 8 * one, 8 * one, 3 * one).max() < 200


def test_noise_has_the_deviations_that_it_says() -> None:
    grey = np.full((4000, 400), 128, np.uint8)
    amounts = (np.arange(4000) % 4).astype(np.uint64)
    noised = module._noised(grey, amounts, np.arange(4000), seed=1).astype(float) - 128
    deviations = [noised[amounts == amount].std() for amount in range(4)]
    assert np.allclose(deviations, [0, 8, 16, 24], atol=0.6)
    assert abs(noised.mean()) < 0.1


def test_no_patterns_are_asked_for_and_none_are_made() -> None:
    assert generate_samples(scans(), np.array([], np.int64), 0).shape == (0, 400)
    assert downscale(scans()[:0]).shape == (0, 400)


def test_a_number_below_zero_is_refused() -> None:
    with pytest.raises(UserError, match="at least 0, got -1"):
        generate_samples(scans(), np.array([4, -1]), 0)


def test_bits_survive_packing() -> None:
    ink = unpacked(scans())
    assert (unpacked(packed(ink.astype(bool))) == ink).all()
