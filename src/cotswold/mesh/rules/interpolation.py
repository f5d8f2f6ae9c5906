"""Rules for interpolation: nearest neighbour and bilinear.

Knows: positions of outputs between inputs, as in torch. Does not know: exchanges.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cotswold.errors import UserError
from cotswold.geometry import Box
from cotswold.kernels.operands import accumulation_dtype
from cotswold.mesh.maps.map import DistributedMap
from cotswold.mesh.rules.operands import pair
from cotswold.mesh.rules.registry import rule
from cotswold.mesh.rules.windows import windowed


@dataclass(frozen=True)
class _Axis:
    """Outputs along an axis of ``inputs``, ``scale`` inputs apart."""

    inputs: int
    outputs: int
    scale: float
    align: bool
    linear: bool

    def place(self, output: int) -> float:
        """Return the position of an output among the inputs."""
        if not self.linear:
            return float(math.floor(output * self.scale))
        return output * self.scale if self.align else max((output + 0.5) * self.scale - 0.5, 0.0)

    def reads(self, output: int) -> tuple[int, int]:
        """Return the inputs before and after an output."""
        first = min(int(self.place(output)), self.inputs - 1)
        return first, min(first + self.linear, self.inputs - 1)

    def mixed(self, window: Tensor, dim: int, first: int, outputs: range) -> Tensor:
        """Compute the outputs from a window that begins at the input ``first``."""
        near, far = (
            torch.tensor([self.reads(output)[side] - first for output in outputs], device=window.device)
            for side in (0, 1)
        )
        low = window.index_select(dim, near)
        if not self.linear:
            return low
        shares = [self.place(output) - self.reads(output)[0] for output in outputs]
        share = torch.tensor(shares, dtype=window.dtype, device=window.device)
        return low.lerp(window.index_select(dim, far), share[:, None] if dim == 2 else share)


@dataclass(frozen=True)
class _Interpolated:
    y: _Axis
    x: _Axis

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the fixed number of outputs."""
        return self.y.outputs, self.x.outputs

    def input_box(self, output: Box) -> Box:
        """Return the box of inputs around the outputs."""
        (top, left), (bottom, right) = output.start, output.stop
        start = self.y.reads(top)[0], self.x.reads(left)[0]
        return Box(start, (self.y.reads(bottom - 1)[1] + 1, self.x.reads(right - 1)[1] + 1))


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
    """Apply ``nearest`` by whole factors, or ``bilinear``."""
    plane, align = input.partition.shape, bool(align_corners)
    factors = scale_factor if isinstance(scale_factor, tuple | list) else (scale_factor,) * 2
    if (size is None) == (scale_factor is None) or len(factors) != 2:
        raise UserError("interpolate takes either size or scale_factor, of one or two numbers")
    if size is None:
        outputs = tuple(math.floor(n * factor) for n, factor in zip(plane, factors, strict=True))
    else:
        outputs = pair(size, "size")
    whole = all(count % n == 0 for count, n in zip(outputs, plane, strict=True))
    if mode not in ("nearest", "bilinear") or antialias or (mode == "nearest" and not whole):
        raise UserError(
            "a distributed map supports mode='nearest' by whole factors, and mode='bilinear', but got "
            f"mode={mode!r} from {plane} to {outputs}; call full_tensor() on it first"
        )
    axes = []
    for at, (n, count) in enumerate(zip(plane, outputs, strict=True)):
        if align:
            scale = (n - 1) / (count - 1) if count > 1 else 0.0
        elif size is None and not recompute_scale_factor:
            scale = 1 / factors[at]
        else:
            scale = n / count
        axes.append(_Axis(n, count, scale, align, mode == "bilinear"))
    field = _Interpolated(*axes)

    def compute(window: Tensor, box: Box, _: tuple[int, int]) -> Tensor:
        (top, left), (bottom, right) = box.start, box.stop
        y0, x0 = field.input_box(box).start
        wide = window.to(accumulation_dtype(window.dtype)) if mode == "bilinear" else window
        rows = field.y.mixed(wide, 2, y0, range(top, bottom))
        return field.x.mixed(rows, 3, x0, range(left, right)).to(window.dtype)

    return windowed(input, field, input.shape[1], compute)
