"""Log energies of mel bands: frames of 25 ms every 10 ms, 40 bands.

Knows: windows, the mel scale. Does not know: files, the contents of recordings.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

VERSION = 1
"""Incremented when the frames change."""
BANDS = 40
_WINDOW_SECONDS, _STEP_SECONDS = 0.025, 0.010
_SILENCE = 1e-10
"""Floor of the energy: 100 dB below full scale."""


def frames_of(samples: int, rate: int) -> int:
    """Return the number of frames in ``samples`` at ``rate`` samples per second, at least 1.

    A remainder too short for a frame is dropped.
    """
    window, step = _extents(rate)
    return 1 + max(0, samples - window) // step


def log_mel(samples: NDArray[np.float64], rate: int) -> NDArray[np.float32]:
    """Return natural logarithms of energies, (frame, 40), of samples (sample,) in -1..1."""
    window, step = _extents(rate)
    frames = frames_of(len(samples), rate)
    padded = np.pad(samples, (0, max(0, window - len(samples))))
    views = np.lib.stride_tricks.sliding_window_view(padded, window)[::step][:frames]
    transform = 1 << (2 * window - 1).bit_length()
    power = np.abs(np.fft.rfft(views * np.hamming(window), transform, axis=1)) ** 2 / window
    energies: NDArray[np.float32] = np.log(power @ _bands(rate, transform) + _SILENCE).astype(np.float32)
    return energies


def _extents(rate: int) -> tuple[int, int]:
    """Return the length of a window and the step between windows, in samples."""
    return max(1, round(_WINDOW_SECONDS * rate)), max(1, round(_STEP_SECONDS * rate))


@lru_cache(maxsize=4)
def _bands(rate: int, transform: int) -> NDArray[np.float64]:
    """Return triangles of equal width on the mel scale, (frequency, 40), up to half the rate."""
    hertz = np.arange(transform // 2 + 1) * rate / transform
    mel = 2595 * np.log10(1 + hertz / 700)  # O'Shaughnessy 1987
    edges = np.linspace(0, mel[-1], BANDS + 2)
    rising = (mel[:, None] - edges[:-2]) / (edges[1] - edges[0])
    falling = (edges[2:] - mel[:, None]) / (edges[1] - edges[0])
    triangles: NDArray[np.float64] = np.maximum(0.0, np.minimum(rising, falling))
    return triangles
