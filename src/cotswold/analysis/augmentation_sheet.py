"""Training pictures beside what augmentation makes of them.

Knows: prepared values as colours, which variant an epoch sees. Does not know: recipes, transforms.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cotswold.analysis.images import Floats, contact_sheet
from cotswold.data import Store
from cotswold.data.loading.batching import Maker, Varying, Wanted

_WIDTH = 1200
"""Pixels of a sheet at least."""


def sheet_of_variants(store: Store, varying: Varying, seed: int, samples: int, epochs: int) -> Image.Image:
    """A row a picture: as it is, then as the first epochs learn from it. The first training samples of a
    store are shown."""
    rows = np.arange(min(samples, store.splits["train"]))
    makers = [
        Maker(store, "train", varying=None, seed=seed),
        *[Maker(store, "train", varying=varying, seed=seed)] * epochs,
    ]
    stored = makers[0].read(0, len(rows))
    columns = [
        maker.batch(Wanted(max(0, number - 1), rows), stored)[0].numpy()
        for number, maker in enumerate(makers)
    ]
    tiles = [_coloured(column[row], columns[0][row]) for row in range(len(rows)) for column in columns]
    return contact_sheet(tiles, len(columns), least=_WIDTH)


def _coloured(values: Floats, original: Floats) -> NDArray[np.uint8]:
    """Values (channel, y, x) as RGB (y, x, 3), black to white as in the ``original``."""
    least, greatest = float(original.min()), float(original.max())
    grey = np.clip(255 * (values - least) / ((greatest - least) or 1.0), 0, 255).round().astype(np.uint8)
    return np.repeat(grey, 4 - len(grey), axis=0)[:3].transpose(1, 2, 0)
