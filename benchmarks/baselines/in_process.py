"""The transforms alone: batches made one after the other in the trainer's process.

Knows: NumPy. Does not know: which library transforms.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from baselines.common import LoaderSettings, images, measured, transform_name, transformed


def batches(feeding: LoaderSettings) -> Iterator[NDArray[np.float32]]:
    """Yield batches of endless epochs, shuffled."""
    given, chance = images(feeding), np.random.default_rng(0)
    while True:
        order = chance.permutation(len(given))
        for start in range(0, len(order) - feeding.batch + 1, feeding.batch):
            yield transformed(feeding, given[np.sort(order[start : start + feeding.batch])], chance)


if __name__ == "__main__":
    asked = LoaderSettings.asked()
    measured(asked, batches(asked), transform_name(asked))
