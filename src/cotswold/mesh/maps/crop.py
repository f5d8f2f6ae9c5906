"""Parts of maps by their boxes.

Knows: tensors ``(image, channel, y, x)`` that lie on a box of a plane. Does not know: who has what.
"""

from __future__ import annotations

from torch import Tensor

from cotswold.geometry import Box


def crop(x: Tensor, box: Box, origin: Box) -> Tensor:
    """A box of the plane, ``(image, channel, *box)``, of a map that lies on the box ``origin``; a view."""
    rows, columns = box.within(origin).slices
    return x[:, :, rows, columns]
