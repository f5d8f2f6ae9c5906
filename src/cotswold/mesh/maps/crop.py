"""Crops of maps by boxes.

Knows: tensors ``(image, channel, y, x)`` that cover a box of a plane. Does not know: which rank has which
box.
"""

from __future__ import annotations

from torch import Tensor

from cotswold.geometry import Box


def crop(x: Tensor, box: Box, origin: Box) -> Tensor:
    """Crop a map that covers the box ``origin`` to ``box``: a view ``(image, channel, *box)``."""
    rows, columns = box.relative_to(origin).slices
    return x[:, :, rows, columns]
