"""The job of an image warp, and the layout of a random field in scratch.

Knows: fields of the job, margins of zeros. Does not know: generated code.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.kernels.compile.jobs import JobFields

SMOOTHED_ROWS = 4
"""Rows of each part of a field smoothed at a time."""
ZERO_ROWS = SMOOTHED_ROWS - 1
"""Rows of zeros above and below a part."""
JOB = JobFields(
    *("values", "output", "maps", "slopes", "keys", "taps", "stream"),
    *("channels", "height", "width", "taps_x", "taps_y"),
)
"""``taps`` is the address of the tap of the pixel itself; ``taps_x`` and ``taps_y`` are those on either side.

``stream`` is the value that the stream adds to the hashed number.
"""


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
