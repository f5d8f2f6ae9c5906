"""From the whitened space that a network sees back to colours and light that people see.

Knows: that whitening is one colour matrix at each cosine frequency. Does not know: filters, stimuli.
"""

from __future__ import annotations

import numpy as np

from cotswold.data import Transform
from cotswold.data.preprocessing.whitening import TOP, Float32, cosine_radii, filtered, roll_off


def unwhitened(pictures: Float32, transform: Transform) -> Float32:
    """Prepared pictures ``(image, channel, y, x)`` before whitening, up to what the filter took out.

    Above the whitened band the filter falls to 0; there it falls again instead of being divided by.
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
