"""Numbers of a store and the values that they stand for."""

from __future__ import annotations

import numpy as np
import torch

from cotswold.data import Preparation, Transform


def test_every_finite_half_is_restored_to_the_same_bits_as_by_numpy() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = halves[np.isfinite(halves)]
    stored = np.concatenate([finite, finite[::-1]])  # more than one block
    transform = Transform(Preparation((1, 1), whiten=False))
    for each in (stored, stored[::3], stored.reshape(4, 2, -1).transpose(2, 0, 1), stored[:0], stored[7]):
        found = transform.restored(np.asarray(each))
        assert found.dtype == np.float32
        np.testing.assert_array_equal(
            found.view(np.uint32), np.asarray(each, np.float32).view(np.uint32), strict=True
        )


def test_small_halves_are_kept_in_a_thread_that_flushes_denormal_numbers() -> None:
    transform = Transform(Preparation((1, 1), whiten=False))
    halves = np.array([1e-6, 6e-8, -3e-5, 1.0], np.float16)
    expected = halves.astype(np.float32)
    if torch.set_flush_denormal(True):
        try:
            found = transform.restored(halves)
        finally:
            torch.set_flush_denormal(False)
        np.testing.assert_array_equal(found, expected)
