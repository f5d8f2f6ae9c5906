"""Undo whitening, for images that people look at.

Knows: whitening is one colour matrix per cosine frequency. Does not know: filters, stimuli.
"""

from __future__ import annotations

import numpy as np

from cotswold.data import Transform
from cotswold.data.preprocessing.whitening import TOP, Float32, cosine_radii, filtered, roll_off


def unwhitened(pictures: Float32, transform: Transform) -> Float32:
    """Return prepared images ``(image, channel, y, x)`` before whitening, except for what the filter removed.

    Above the whitened band the filter falls to 0; there the result falls too, instead of dividing by it.
    """
    if transform.whitening is None:
        return pictures
    height, width = pictures.shape[2:]
    matrices = transform.whitening.on_grid(height, width).transpose(2, 3, 0, 1).astype(np.float64)
    passed = roll_off(cosine_radii(height, width), transform.preparation.band * TOP)
    kept = passed > 1e-3
    inverse = np.zeros_like(matrices)
    inverse[kept] = np.linalg.pinv(matrices[kept]) * (passed[kept] ** 2)[:, None, None]
    return filtered(pictures, np.ascontiguousarray(inverse.transpose(2, 3, 0, 1), np.float32))
