"""Training images with their augmented variants.

Knows: prepared values as colours, which variant an epoch sees. Does not know: recipes, transforms.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cotswold.analysis.images import Floats, contact_sheet
from cotswold.data import Store
from cotswold.data.loading.batching import Augment, BatchBuilder, BatchRows

_WIDTH = 1200
"""Smallest width of a sheet in pixels."""


def sheet_of_variants(
    store: Store, augmentation: Augment, seed: int, samples: int, epochs: int
) -> Image.Image:
    """Return a sheet of the first training images of a store, one per row, with augmented variants.

    Args:
        store: the store.
        augmentation: the augmentation.
        seed: the recipe's training.seed.
        samples: number of images.
        epochs: number of variants, those of the first epochs.

    Returns:
        An image; the first column shows the images without augmentation.
    """
    rows = np.arange(min(samples, store.splits["train"]))
    makers = [
        BatchBuilder(store, "train", augmentation=None, seed=seed),
        *[BatchBuilder(store, "train", augmentation=augmentation, seed=seed)] * epochs,
    ]
    stored = makers[0].read(0, len(rows))
    columns = [
        maker.batch(BatchRows(max(0, number - 1), rows), stored)[0].numpy()
        for number, maker in enumerate(makers)
    ]
    tiles = [_coloured(column[row], columns[0][row]) for row in range(len(rows)) for column in columns]
    return contact_sheet(tiles, len(columns), least=_WIDTH)


def _coloured(values: Floats, original: Floats) -> NDArray[np.uint8]:
    """Return values (channel, y, x) as RGB (y, x, 3), with the range of the ``original``."""
    least, greatest = float(original.min()), float(original.max())
    grey = np.clip(255 * (values - least) / ((greatest - least) or 1.0), 0, 255).round().astype(np.uint8)
    return np.repeat(grey, 4 - len(grey), axis=0)[:3].transpose(1, 2, 0)
