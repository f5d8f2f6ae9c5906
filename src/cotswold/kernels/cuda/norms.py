"""The norms of filters on CUDA.

Knows: the layout of filters. Does not know: what norms are for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cotswold.errors import GeometryError
from cotswold.kernels.cuda.launch import Program, arithmetic, check_types
from cotswold.kernels.cuda.tiles import power_of_two

NEURONS_AT_ONCE = 128
WEIGHTS_AT_ONCE = 4096
"""Weights of a tile: 32 a thread of four warps."""
_NORMS = Program("norms", (), ())


def filter_norms(filters: Tensor) -> Tensor:
    """The Euclidean norm of every filter, ``(block_y, block_x, neuron)``; float32 for bfloat16 filters.

    ``filters`` is ``(block_y, block_x, field_y, field_x * channel, neuron)``, contiguous. Raises
    GeometryError for other tensors, MissingExtraError without Triton.
    """
    if filters.dim() != 5 or not filters.is_contiguous():
        raise GeometryError(
            f"filters of shape {tuple(filters.shape)} and strides {filters.stride()} are not contiguous "
            "and of shape (block_y, block_x, field_y, field_x * channel, neuron); make them so"
        )
    check_types((filters,))
    down, across, field_y, wide, neurons = filters.shape
    narrow = filters.dtype == torch.bfloat16
    out = filters.new_empty((down, across, neurons), dtype=torch.float32 if narrow else filters.dtype)
    if out.numel() == 0:
        return out
    side = min(power_of_two(neurons), NEURONS_AT_ONCE)
    _NORMS.start(
        (filters, out),
        (field_y * wide, neurons),
        {"NEURONS": neurons},
        down * across,
        {"SUM": arithmetic(filters.dtype)["SUM"], "NEURONS": side, "DEPTH": WEIGHTS_AT_ONCE // side},
    )
    return out
