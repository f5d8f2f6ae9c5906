"""Operands of kernels: dtypes by name, maps ``(image, channel, y, x)`` by their strides.

Knows: strides of maps with images last in memory, ``[y][x][channel][image]``; which tensors have memory that
a kernel can read. Does not know: what is computed from a map.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from cotswold.errors import UserError

HALVES = ("bfloat16", "float16")
"""16-bit dtypes, whose products are summed in float32."""
NOWHERE = 255
"""Byte of a maximum that no position of its window holds, because of an activation; others are below it."""
LOW_ADDRESS = 1 << 40
"""Lower addresses are compared with those that a tensor without memory reports: 0 plus its offset."""


@dataclass(frozen=True)
class MapStrides:
    """Strides of a map with images last: elements between adjacent channels, columns and rows."""

    channel: int
    column: int
    row: int


def map_strides(x: Tensor) -> MapStrides | None:
    """Return the strides of a map with images last, or None if its layout is another.

    Strides of dimensions with one element are ignored.
    """
    images, channels, height, width = x.shape
    image_stride, channel_stride, row_stride, column_stride = x.stride()
    if images > 1 and image_stride != 1:
        return None
    if channels > 1:
        channel = channel_stride
    elif width > 1:
        channel = column_stride
    else:
        channel = max(images, 1)
    row = row_stride if height > 1 else width * channels * channel
    dense = channel >= max(images, 1) and row >= width * channels * channel
    aligned = width == 1 or column_stride == channels * channel
    return MapStrides(channel, channels * channel, row) if dense and aligned else None


def required_map_strides(x: Tensor) -> MapStrides:
    """Return the strides of a map whose images must be last."""
    found = map_strides(x)
    assert found is not None, "the images of a map must be last"
    return found


@lru_cache(maxsize=16)
def name_of(dtype: torch.dtype) -> str:
    """Return the kernels' name of a dtype, such as ``float32``."""
    return str(dtype).removeprefix("torch.")


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of sums: float32 for shorter floats, otherwise the same dtype."""
    return torch.float32 if dtype.is_floating_point and dtype.itemsize < torch.float32.itemsize else dtype


def pointer_of(x: Tensor) -> int:
    """Return the address of a tensor's first element, for a kernel on this processor.

    Every kernel gets its addresses here. Raises UserError for a tensor without memory (a DTensor, or freed
    memory), on another device, or a view that torch negates only when it is read.
    """
    found = x.data_ptr()
    if not x.is_cpu or x.is_neg() or (found < LOW_ADDRESS and _lacks_memory(x, found)):
        raise _unreadable(x)
    return found


def check_cuda_tensor(x: Tensor) -> None:
    """Raise UserError unless a CUDA kernel can read a tensor; see `pointer_of`."""
    found = x.data_ptr()
    if x.is_neg() or (found < LOW_ADDRESS and _lacks_memory(x, found)):
        raise _unreadable(x)


def _lacks_memory(x: Tensor, found: int) -> bool:
    return x.numel() > 0 and found == x.storage_offset() * x.element_size()


def _unreadable(x: Tensor) -> UserError:
    shape, kind = tuple(x.shape), type(x).__name__
    if kind == "DTensor":
        return UserError(
            f"a kernel cannot read a DTensor {shape}, which has no memory of its own; call the layer on "
            "local tensors (to_local()), or split the module with cotswold.mesh.partition and call all of it"
        )
    if _lacks_memory(x, x.data_ptr()):
        return UserError(
            f"a kernel cannot read a {kind} {shape} without memory of its own, or with freed memory; "
            "pass an ordinary tensor"
        )
    if x.is_neg():
        return UserError(f"a kernel cannot read a negated view {shape}; call resolve_neg() on it first")
    return UserError(f"a CPU kernel cannot read a tensor {shape} on {x.device}; call .cpu() on it first")
