"""One value a neuron, as a map.

Knows: the order of neurons in a block. Does not know: what the values are.
"""

from __future__ import annotations

from torch import Tensor

from cotswold.geometry import BlockLocal


def lay_out(values: Tensor, layer: BlockLocal) -> Tensor:
    """``(block_y, block_x, neuron)`` to the map ``(depth, y, x)`` in which blocks lie side by side."""
    down, across = layer.grid
    spread = values.reshape(down, across, layer.rows, layer.columns, layer.depth).permute(4, 0, 2, 1, 3)
    return spread.reshape(layer.depth, down * layer.rows, across * layer.columns)
