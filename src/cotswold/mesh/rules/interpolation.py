"""Rules for interpolation: nearest neighbour, bilinear, bicubic, area, with or without antialiasing.

Knows: which inputs an output reads and with which weights, as in torch. Does not know: exchanges.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cotswold.errors import UserError
from cotswold.geometry import Box
from cotswold.kernels.operands import accumulation_dtype
from cotswold.mesh.maps.map import DistributedMap
from cotswold.mesh.rules.operands import pair
from cotswold.mesh.rules.registry import rule
from cotswold.mesh.rules.space import copied
from cotswold.mesh.rules.windows import windowed

_NEAREST = ("nearest", "nearest-exact")
_SUMS = ("bilinear", "bicubic", "area")


@dataclass(frozen=True)
class _Axis:
    """Outputs along an axis of ``inputs``, ``scale`` inputs apart."""

    inputs: int
    outputs: int
    scale: float
    align: bool
    mode: str
    antialias: bool

    def weighted(self, output: int) -> tuple[int, list[float]]:
        """Return the first input that an output reads, and the weights of this and of the next inputs."""
        if self.mode == "area":
            first, stop = output * self.inputs // self.outputs, -(-(output + 1) * self.inputs // self.outputs)
            return first, [1 / (stop - first)] * (stop - first)
        if self.antialias:
            return self._smooth((output + 0.5) * self.scale)
        place = output * self.scale if self.align else (output + 0.5) * self.scale - 0.5
        if self.mode == "bilinear":
            place = max(place, 0.0)
            first = min(int(place), self.inputs - 1)
            return first, [1 - (place - first), place - first] if first + 1 < self.inputs else [1.0]
        near = math.floor(place)
        taps: dict[int, float] = {}
        for at in range(near - 1, near + 3):  # at the border, the outermost input counts several times
            inside = min(max(at, 0), self.inputs - 1)
            taps[inside] = taps.get(inside, 0.0) + _cubic(place - at, -0.75)
        return min(taps), [taps[at] for at in sorted(taps)]

    def _smooth(self, centre: float) -> tuple[int, list[float]]:
        """Return the inputs under a filter that is stretched by the scale, with weights of sum 1."""
        wide, reach = max(self.scale, 1.0), 2.0 if self.mode == "bicubic" else 1.0
        first = max(int(centre - reach * wide + 0.5), 0)
        stop = min(int(centre + reach * wide + 0.5), self.inputs)
        away = [(at - centre + 0.5) / wide for at in range(first, stop)]
        found = [_cubic(one, -0.5) if self.mode == "bicubic" else max(1 - abs(one), 0.0) for one in away]
        return first, [one / sum(found) for one in found]


def _cubic(away: float, slope: float) -> float:
    """Keys' cubic convolution at a distance."""
    away = abs(away)
    if away <= 1:
        return ((slope + 2) * away - (slope + 3)) * away * away + 1
    return ((away - 5) * away + 8) * away * slope - 4 * slope if away < 2 else 0.0


@lru_cache(maxsize=256)
def _taps(axis: _Axis) -> list[tuple[int, list[float]]]:
    return [axis.weighted(output) for output in range(axis.outputs)]


def _mixed(axis: _Axis, window: Tensor, dim: int, first: int, outputs: range) -> Tensor:
    """Compute outputs from a window that begins at the input ``first``."""
    taps = [_taps(axis)[output] for output in outputs]
    total: Any = 0
    for at in range(max(len(weights) for _, weights in taps)):
        # An output that reads fewer inputs reads its last one again, with weight 0.
        near = [begin - first + min(at, len(weights) - 1) for begin, weights in taps]
        shares = [weights[at] if at < len(weights) else 0.0 for _, weights in taps]
        share = torch.tensor(shares, dtype=window.dtype, device=window.device)
        values = window.index_select(dim, torch.tensor(near, device=window.device))
        total = total + values * (share[:, None] if dim == 2 else share)
    found: Tensor = total
    return found


@dataclass(frozen=True)
class _Interpolated:
    y: _Axis
    x: _Axis

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the fixed number of outputs."""
        return self.y.outputs, self.x.outputs

    def input_box(self, output: Box) -> Box:
        """Return the box of inputs that the outputs read."""
        (top, left), (bottom, right) = output.start, output.stop
        y0, x0, (y1, below), (x1, beside) = (
            _taps(self.y)[top][0],
            _taps(self.x)[left][0],
            _taps(self.y)[bottom - 1],
            _taps(self.x)[right - 1],
        )
        return Box((y0, x0), (y1 + len(below), x1 + len(beside)))


@lru_cache(maxsize=256)
def _nearest(extent: int, mode: str, dtype: torch.dtype, device: torch.device, **how: Any) -> tuple[int, ...]:
    """The inputs that torch copies along an axis; its arithmetic rounds differently for types and devices."""
    places = torch.arange(extent, dtype=accumulation_dtype(dtype), device=device)[None, None, :, None]
    return tuple(F.interpolate(places, mode=mode, **how).flatten().long().tolist())


@rule("interpolate", "upsample")
def interpolate(
    input: DistributedMap,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> DistributedMap:
    """Interpolate in one of torch's modes."""
    plane, align = input.partition.shape, bool(align_corners)
    factors = scale_factor if isinstance(scale_factor, tuple | list) else (scale_factor,) * 2
    if (size is None) == (scale_factor is None) or len(factors) != 2:
        raise UserError("interpolate takes either size or scale_factor, of one or two numbers")
    if size is None:
        outputs = tuple(math.floor(n * factor) for n, factor in zip(plane, factors, strict=True))
    else:
        outputs = pair(size, "size")
    if mode not in (*_NEAREST, *_SUMS) or min(outputs) < 1:
        raise UserError(
            f"a distributed map can be interpolated in modes {', '.join((*_NEAREST, *_SUMS))} to one pixel "
            f"or more, got {mode!r} from {plane} to {outputs}"
        )
    if mode in _NEAREST:
        places = []
        for at, (n, count) in enumerate(zip(plane, outputs, strict=True)):
            kept: dict[str, Any] = {"size": (count, 1)}
            if size is None:
                kept = {"scale_factor": (factors[at], 1.0), "recompute_scale_factor": recompute_scale_factor}
            places.append(_nearest(n, mode, input.dtype, input.device, **kept))
        return copied(input, places[0], places[1])
    axes = []
    for at, (n, count) in enumerate(zip(plane, outputs, strict=True)):
        if align:
            scale = (n - 1) / (count - 1) if count > 1 else 0.0
        elif size is None and not recompute_scale_factor:
            scale = 1 / factors[at]
        else:
            scale = n / count
        axes.append(_Axis(n, count, scale, align, mode, antialias))
    field = _Interpolated(*axes)

    def compute(window: Tensor, box: Box, _: tuple[int, int]) -> Tensor:
        (top, left), (bottom, right) = box.start, box.stop
        y0, x0 = field.input_box(box).start
        wide = window.to(accumulation_dtype(window.dtype))
        rows = _mixed(field.y, wide, 2, y0, range(top, bottom))
        return _mixed(field.x, rows, 3, x0, range(left, right)).to(window.dtype)

    return windowed(input, field, input.shape[1], compute)
