"""From the whitened space that a network sees back to colours and light that people see.

Knows: that whitening is one colour matrix at each cosine frequency. Does not know: filters, stimuli.
"""

from __future__ import annotations

import numpy as np

from cotswold.data import Transform
from cotswold.data.whitening import Float32, filtered

_LEAST = 0.02
"""Below this part of its greatest value the filter is not divided by: nothing is left to restore."""


def unwhitened(pictures: Float32, transform: Transform) -> Float32:
    """Prepared pictures ``(image, channel, y, x)`` before whitening, up to what the filter took out."""
    if transform.whitening is None:
        return pictures
    grid = transform.whitening.on_grid(*pictures.shape[2:])
    matrices = grid.transpose(2, 3, 0, 1).astype(np.float64)
    u, s, v = np.linalg.svd(matrices)
    kept = s / (s**2 + (_LEAST * s.max()) ** 2)
    inverse = np.einsum("yxba,yxb,yxcb->yxac", v, kept, u)
    return filtered(pictures, np.ascontiguousarray(inverse.transpose(2, 3, 0, 1), np.float32))
