"""Fraction of a stack's filters that are still their initial noise.

Knows: whitened images only have power up to a frequency, so filters learn nothing beyond it. Does not know:
training, the report.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cotswold.data import Preparation
from cotswold.data.preprocessing.whitening import ROLL_OFF, TOP, cosine_radii, cosines
from cotswold.nn import SparseAutoencoderStack


def noise_share(stack: SparseAutoencoderStack, preparation: Preparation) -> float | None:
    """Return the fraction of a first stack's filters with power at frequencies that images do not have.

    An untrained filter has the same power at all frequencies, including those beyond the whitened band; a
    filter with at least half as much there counts as noise. None if images are not whitened, or if the band
    excludes less than a tenth of all frequencies: then noise cannot be detected this way.
    """
    layer = stack.geometry.filters
    radii = cosine_radii(layer.y.size, layer.x.size)
    inside = radii <= preparation.band * TOP * ROLL_OFF
    beyond = 1 - float(inside.mean())
    if not preparation.whiten or beyond < 0.1:
        return None
    noise = total = 0
    for row in stack.filters.detach():  # one row of blocks at a time
        values: NDArray[np.float32] = row.float().cpu().numpy()
        tiles = values.reshape(len(values), layer.y.size, layer.x.size, layer.input.channels, -1)
        spectrum = np.einsum(
            "uy,byxcn,vx->bcnuv", cosines(layer.y.size), tiles, cosines(layer.x.size), optimize=True
        )
        power = np.square(spectrum).sum(1)
        part = power[..., ~inside].sum(-1) / np.maximum(power.sum((-2, -1)), 1e-30)
        noise, total = noise + int((part > beyond / 2).sum()), total + part.size
    return noise / total
