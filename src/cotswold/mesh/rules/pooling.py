"""Rules for max, average and power-average pooling.

Knows: how torch counts windows, and by what it divides sums. Does not know: exchanges.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cotswold.errors import GeometryError
from cotswold.geometry import Box
from cotswold.kernels.operands import accumulation_dtype
from cotswold.mesh.maps.map import DistributedMap
from cotswold.mesh.rules.operands import pair
from cotswold.mesh.rules.registry import rule
from cotswold.mesh.rules.windows import Padding, plane_of, spanned, windowed

_Pair = tuple[int, int]


def _pooled(
    x: DistributedMap, name: str, size: _Pair, step: _Pair, low: _Pair, dilation: _Pair, ceil_mode: bool
) -> Padding:
    """Return the windows of a pooling; in ``ceil_mode`` the last may end beyond the padding."""
    span = spanned(size, dilation)
    if any(2 * p > n for p, n in zip(low, size, strict=True)):
        raise GeometryError(
            f"{name} pads by at most half of its window; padding {low} is too large for {size}"
        )
    counts = []
    for extent, n, s, p in zip(plane_of(x), span, step, low, strict=True):
        room = extent + 2 * p - n
        count = (room + (s - 1 if ceil_mode else 0)) // s + 1
        if ceil_mode and (count - 1) * s >= extent + p:
            count -= 1
        counts.append(count)
    if min(counts) < 1:
        raise GeometryError(f"{name} with a window of {span} does not fit a map of {plane_of(x)}")
    return Padding(span, step, low, (counts[0], counts[1]))


@rule("max_pool2d")
def max_pool2d(
    input: DistributedMap,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Max pooling; indices count the pixels of the whole map."""
    size, spread = pair(kernel_size, "kernel_size"), pair(dilation, "dilation")
    step = pair(stride, "stride") if stride else size  # torch's methods pass [] for the default
    field = _pooled(input, "max_pool2d", size, step, pair(padding, "padding"), spread, ceil_mode)
    places: list[Tensor] = []

    def compute(window: Tensor, box: Box, pad: _Pair) -> Tensor:
        if not return_indices:
            return F.max_pool2d(window, size, step, pad, spread)
        found, at = F.max_pool2d(window, size, step, pad, spread, return_indices=True)
        top, left = (first + n for first, n in zip(field.input_box(box).start, pad, strict=True))
        y, x = at // window.shape[3] + top, at % window.shape[3] + left
        places.append(y * input.shape[3] + x)
        return found

    out = windowed(input, field, input.shape[1], compute, fill=-torch.inf)
    if not return_indices:
        return out
    none = out.local.new_zeros(out.local.shape, dtype=torch.int64)
    return out, out.like(places[0] if places else none)


@rule("max_pool2d_with_indices")
def max_pool2d_with_indices(*args: Any, **kwargs: Any) -> Any:
    """Maxima and their indices."""
    return max_pool2d(*args, **{**kwargs, "return_indices": True})


@rule("avg_pool2d")
def avg_pool2d(
    input: DistributedMap,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> DistributedMap:
    """Average pooling with torch's divisors at each place of the map."""
    means = _averages(input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return means.like(means.local.to(input.dtype))


def _averages(
    input: DistributedMap,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> DistributedMap:
    """Return the averages of windows in the accumulation type."""
    wide = accumulation_dtype(input.dtype)
    size = pair(kernel_size, "kernel_size")
    step, low = pair(stride, "stride") if stride else size, pair(padding, "padding")
    field = _pooled(input, "avg_pool2d", size, step, low, (1, 1), ceil_mode)
    room = low if count_include_pad else (0, 0)

    def compute(window: Tensor, box: Box, pad: _Pair) -> Tensor:
        sums = F.avg_pool2d(window.to(wide), size, step, pad, divisor_override=divisor_override or 1)
        if divisor_override is not None:
            return sums
        counts = [
            torch.tensor(
                [min(at * s - p + n, extent + q) - max(at * s - p, -q) for at in range(first, stop)],
                dtype=sums.dtype,
                device=sums.device,
            )
            for first, stop, extent, n, s, p, q in zip(
                box.start, box.stop, plane_of(input), size, step, low, room, strict=True
            )
        ]
        return sums / (counts[0][:, None] * counts[1])

    return windowed(input, field, input.shape[1], compute)


@rule("lp_pool2d")
def lp_pool2d(
    input: DistributedMap, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
) -> Any:
    """Power-average pooling as in torch: the root of a sum of powers over a window."""
    powers: Any = input.to(accumulation_dtype(input.dtype)).pow(norm_type)
    means = _averages(powers, kernel_size, stride, 0, ceil_mode, True, None)
    area = math.prod(pair(kernel_size, "kernel_size"))
    return ((means.sign() * means.abs().relu() * area) ** (1 / norm_type)).to(input.dtype)
