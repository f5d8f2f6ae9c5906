from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cotswold.analysis.filter_images import undo_whitening
from cotswold.analysis.selectivity.testset import ObjectTestSet
from cotswold.data import Preparation, Transform, open_source
from cotswold.data.preprocessing.images import estimate, spectra


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for kind, count in (("with", 5), ("without", 7)):
        (tmp_path / kind).mkdir()
        for index in range(count):
            noise = generator.integers(0, 255, (12, 10, 3), np.uint8)
            Image.fromarray(noise).save(tmp_path / kind / f"{index}.png")
    (tmp_path / "with" / "broken.png").write_bytes(b"\x89PNG nothing")
    return tmp_path


@pytest.mark.parametrize("kept_bytes", [0, 1 << 20])
def test_passes_agree_and_look_finds_the_photograph(folders: Path, kept_bytes: int) -> None:
    transform = Transform(Preparation(size=(8, 8), whiten=False))
    positives, negatives = open_source(folders / "with"), open_source(folders / "without")
    test_set = ObjectTestSet(positives, negatives, transform, batch=3, kept_bytes=kept_bytes)
    first, second = list(test_set()), list(test_set())
    assert torch.equal(torch.cat([b for b, _ in first]), torch.cat([b for b, _ in second]))
    assert torch.cat([p for _, p in second]).tolist() == [True] * 5 + [False] * 7
    assert len(test_set.broken) == 1
    images = torch.cat([b for b, _ in first])
    for place in (0, 4, 5, 11):
        name, photograph = test_set.original_of(place)
        assert name.endswith(".png")
        np.testing.assert_allclose(transform(photograph), images[place].numpy(), atol=1e-6)


def test_the_same_image_with_and_without_is_equally_bright_whatever_lies_beside_it(tmp_path: Path) -> None:
    for kind, brightest in (("with", 4095), ("without", 1023)):
        (tmp_path / kind).mkdir()
        for name, value in (("same", 512), ("brightest", brightest)):
            Image.fromarray(np.full((8, 8), value, np.uint16)).save(tmp_path / kind / f"{name}.png")
    transform = Transform(Preparation(size=(8, 8), colour="grey", per_image_standardise=False, whiten=False))
    test_set = ObjectTestSet(open_source(tmp_path / "with"), open_source(tmp_path / "without"), transform)
    images = torch.cat([batch for batch, _ in test_set()])
    assert torch.equal(images[1], images[3])


def test_whitening_is_taken_back() -> None:
    generator = np.random.default_rng(0)
    smooth = generator.normal(size=(40, 24, 24, 3)).cumsum(1).cumsum(2)
    smooth -= smooth.min((1, 2, 3), keepdims=True)
    pixels = (255 * smooth / smooth.max((1, 2, 3), keepdims=True)).astype(np.uint8)
    white = Preparation(size=(24, 24), whiten_cutoff=0.9)
    transform = estimate(white, spectra(white, pixels), pixels)
    plain = Transform(Preparation(size=(24, 24), whiten=False)).values(pixels)
    back = undo_whitening(transform.values(pixels), transform)
    for one, other in zip(back, plain, strict=True):
        assert np.corrcoef(one.ravel(), other.ravel())[0, 1] > 0.97
    chequers = np.indices((24, 24)).sum(0) % 2 * 2.0 - 1  # beyond the band, where whitening left nothing
    beyond = undo_whitening(np.broadcast_to(chequers, (1, 3, 24, 24)).astype(np.float32), transform)
    assert np.abs(beyond).mean() < 0.2
