"""The job of an image warp, and the layout of a random field in scratch.

Knows: fields of the job, margins of zeros. Does not know: generated code.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from cotswold.kernels.maps.tasks import JobHead

SMOOTHED_ROWS = 4
"""Rows of each part of a field smoothed at a time."""
ZERO_ROWS = SMOOTHED_ROWS - 1
"""Rows of zeros above and below a part."""


class WarpJob(IntEnum):
    """Fields of a job, after those of every job."""

    VALUES = JobHead.FIELDS
    OUTPUT = 6
    MAPS = 7
    SLOPES = 8
    KEYS = 9
    TAPS = 10
    """Address of the tap of the pixel itself."""
    STREAM = 11
    """Value that the stream adds to the hashed number."""
    CHANNELS = 12
    HEIGHT = 13
    WIDTH = 14
    TAPS_X = 15
    """Taps on either side along x."""
    TAPS_Y = 16
    """Taps on either side along y."""
    FIELDS = 17


@dataclass(frozen=True)
class Planes:
    """Layout of a field in scratch, in elements; all but heights are whole vectors."""

    body: int
    """Elements of a row."""
    margin: int
    """Zeros before and after a row."""
    rows: int
    """Height, in whole groups of rows."""
    height: int

    @classmethod
    def for_image(cls, lanes: int, height: int, width: int, across: int) -> Planes:
        """Return the layout for an image whose rows are smoothed with ``across`` neighbours per side."""
        return cls(
            -(-width // lanes) * lanes,
            -(-across // lanes) * lanes,
            -(-height // SMOOTHED_ROWS) * SMOOTHED_ROWS,
            height,
        )

    @property
    def size(self) -> int:
        """Total elements."""
        return 2 * (self.rows * (self.body + 2 * self.margin) + (self.height + 2 * ZERO_ROWS) * self.body)
