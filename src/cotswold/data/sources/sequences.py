"""Frames and their neighbours in sequences.

Knows: integers. Does not know: files, the contents of frames.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def neighbours(frames: Integers, lengths: Integers, context: int) -> Integers:
    """Return the frames from ``context`` before to ``context`` after each frame: (frame, 2 · context + 1).

    ``lengths`` are the frames in each of the concatenated sequences. Positions beyond the end of a sequence
    repeat its first or last frame, so no sample crosses sequences.
    """
    ends = np.cumsum(lengths)
    sequence = np.searchsorted(ends, frames, side="right")
    last = ends[sequence] - 1
    first = ends[sequence] - lengths[sequence]
    around = frames[:, None] + np.arange(-context, context + 1)
    found: Integers = np.clip(around, first[:, None], last[:, None])
    return found


def frames_of(sequences: Integers, lengths: Integers) -> Integers:
    """Return the frames of some sequences, one sequence after another."""
    starts = np.cumsum(lengths) - lengths
    parts = [np.arange(starts[each], starts[each] + lengths[each]) for each in sequences.tolist()]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def lengths_of(frames: Integers, lengths: Integers) -> Integers:
    """Return the length of each sequence in ``frames``, a result of `frames_of`."""
    sequence = np.searchsorted(np.cumsum(lengths), frames, side="right")
    begins = np.flatnonzero(np.diff(sequence, prepend=-1))
    return np.diff(begins, append=len(frames))
