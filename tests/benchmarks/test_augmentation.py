"""The benchmark of augmentation compares equal transforms."""

from __future__ import annotations

import numpy as np
import pytest

from cotswold.data import Augmentation, keys
from lib import augmentation


@pytest.mark.parametrize("name", augmentation.MOVES)
def test_scipy_moves_images_to_the_same_places(name: str) -> None:
    values = np.random.default_rng(1).random((3, 2, 17, 20), np.float32)
    table = augmentation.MOVES[name]
    ours = Augmentation.of([table])(values, keys(0, 0, np.arange(3)))
    assert np.abs(augmentation._moved_by_scipy(table, values) - ours).max() < 2e-5


def test_every_way_of_every_transform_has_a_rate() -> None:
    found = augmentation.augmentation_rates(3, 1)
    rates, ratios = found["samples_per_second"], found["of_scipy"]
    assert isinstance(rates, dict) and isinstance(ratios, dict)
    assert len(rates) == 2 * (5 * 3 + 2) and all(each["median"] > 0 for each in rates.values())
    assert set(ratios) == {
        f"{name}, {shape}" for name in ("elastic", *augmentation.MOVES) for shape in augmentation.SHAPES
    }
