"""Rules for functions whose outputs read windows: convolution and padding; shared code of such rules.

Knows: which pixels an output reads, the local computation on a padded window. Does not know: exchanges.
Each output is computed as in one process, on a complete window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from cotswold.errors import GeometryError, UserError
from cotswold.geometry import Box
from cotswold.mesh.maps.map import DistributedMap
from cotswold.mesh.maps.windows import (
    ReceptiveField,
    Strided,
    Windows,
    cached_windows,
    exchange_halo,
    kept_window,
    margins,
    padded,
)
from cotswold.mesh.ranks.collectives import all_reduce_backward
from cotswold.mesh.rules.convolution import Convolution, is_worth_overlapping, overlapped
from cotswold.mesh.rules.operands import autocast_operands, compute_part, pair, refuse_other_maps
from cotswold.mesh.rules.registry import rule
from cotswold.mesh.rules.space import MODES, pad_with_pixels

_Pair = tuple[int, int]


def windowed(
    x: DistributedMap,
    field: ReceptiveField,
    channels: int,
    compute: Callable[[Tensor, Box, _Pair], Tensor],
    *learnt: Tensor | None,
    fill: float = 0.0,
) -> DistributedMap:
    """Compute a map from windows by ``compute(window, output box, padding)`` on each rank.

    ``padding`` is the padding that the function still has to add on both sides (y, x), 0 unless the field is
    a `Padding`.
    """
    windows = cached_windows(x.mesh, x.partition, field)
    window, rank = exchange_halo(x, windows), x.mesh.rank
    box = windows.partition.box(rank)

    def computed() -> Tensor:
        low = _both_sides(windows, rank, field) if isinstance(field, Padding) else None
        seen = padded(window, windows, rank, fill) if low is None else window
        with kept_window(x, windows, window, seen, fill):
            return compute(seen, box, low or (0, 0))

    out = compute_part(box, channels, computed, window, *learnt)
    return DistributedMap(out, windows.partition, x.mesh)


class Padding(Strided):
    """Windows of functions that can pad by themselves, symmetrically."""


def _both_sides(windows: Windows, rank: int, field: Strided) -> _Pair | None:
    """Padding with which a function pads a rank's window itself, without a copy; None if it cannot."""
    box, inside = windows.partition.box(rank), windows.inside[rank]
    left, _, top, _ = margins(windows.wanted[rank], inside)
    counts = tuple(
        (extent + 2 * low - size) // step + 1
        for extent, low, size, step in zip(inside.shape, (top, left), field.size, field.step, strict=True)
    )
    return (top, left) if counts == box.shape and inside.size else None


def _outputs(extents: _Pair, size: _Pair, step: _Pair, low: _Pair, high: _Pair, name: str) -> _Pair:
    found = tuple(
        (extent + a + b - n) // s + 1
        for extent, n, s, a, b in zip(extents, size, step, low, high, strict=True)
    )
    if min(found) < 1:
        raise GeometryError(
            f"{name} with a window of {size[0]} x {size[1]} does not fit a map of {extents[0]} x "
            f"{extents[1]}; use a smaller window or a larger map"
        )
    return found[0], found[1]


def plane_of(x: DistributedMap) -> _Pair:
    """Height and width of a map."""
    return x.partition.shape


@rule("conv2d")
def conv2d(
    input: DistributedMap,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> DistributedMap:
    """Convolution with any kernel, stride, padding, dilation and groups."""
    refuse_other_maps("conv2d", weight, bias)
    x, step, spread = input, pair(stride, "stride"), pair(dilation, "dilation")
    if x.shape[1] != weight.shape[1] * groups:
        raise GeometryError(
            f"conv2d has weights for {weight.shape[1] * groups} channels, got a map of {x.shape[1]}"
        )
    size = spanned((weight.shape[2], weight.shape[3]), spread)
    if padding == "same":
        low = high = ((size[0] - 1) // 2, (size[1] - 1) // 2)
        high = (size[0] - 1 - low[0], size[1] - 1 - low[1])
    else:
        low = high = (0, 0) if padding == "valid" else pair(padding, "padding")
    field = Padding(size, step, low, _outputs(plane_of(x), size, step, low, high, "conv2d"))
    x, (weight, bias) = _lowered_and_entered(x, weight, bias)
    compute = Convolution(field, step, spread, groups)
    windows = cached_windows(x.mesh, x.partition, field)
    if x.halo_boxes is None and is_worth_overlapping(windows.partition, x.partition, field):
        return DistributedMap(overlapped(x, weight, bias, windows, compute), windows.partition, x.mesh)
    # If some rank has no outputs, the bias is added afterwards.
    beside = bias if all(box.size for box in windows.partition.boxes) else None
    out = windowed(
        x,
        field,
        weight.shape[0],
        lambda window, _, pad: compute(window, weight, beside, pad),
        weight,
    )
    if beside is not bias and bias is not None:
        out = out.like(out.local + bias[:, None, None])
    return out


def _lowered_and_entered(
    x: DistributedMap, weight: Tensor, bias: Tensor | None
) -> tuple[DistributedMap, list[Any]]:
    """Operands of a product in autocast's type; parameter gradients are summed in the parameters' type."""
    return autocast_operands(
        x, all_reduce_backward(weight, x.mesh), None if bias is None else all_reduce_backward(bias, x.mesh)
    )


def spanned(size: _Pair, dilation: _Pair) -> _Pair:
    """Size that a dilated window covers."""
    return dilation[0] * (size[0] - 1) + 1, dilation[1] * (size[1] - 1) + 1


@dataclass(frozen=True)
class _Transposed:
    """A transposed convolution: output o reads inputs i with ``o = i step - low + k spread`` for some k."""

    size: _Pair
    step: _Pair
    low: _Pair
    outputs: _Pair

    def output_size(self, height: int, width: int) -> _Pair:
        """Return the fixed number of outputs."""
        return self.outputs

    def input_box(self, output: Box) -> Box:
        """Return the box of inputs whose windows reach one of the outputs, at least one."""
        start, stop = [], []
        for first, end, size, step, low in zip(
            output.start, output.stop, self.size, self.step, self.low, strict=True
        ):
            start.append(-(-(first + low - size + 1) // step))
            stop.append(max((end - 1 + low) // step + 1, start[-1] + 1))
        return Box(tuple(start), tuple(stop))


@rule("conv_transpose2d")
def conv_transpose2d(
    input: DistributedMap,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> DistributedMap:
    """Transposed convolution; every rank computes its outputs from the halo, without sums over ranks."""
    refuse_other_maps("conv_transpose2d", weight, bias)
    x, step, spread = input, pair(stride, "stride"), pair(dilation, "dilation")
    low, more = pair(padding, "padding"), pair(output_padding, "output_padding")
    size = spanned((weight.shape[2], weight.shape[3]), spread)
    height, width = (
        (extent - 1) * s - 2 * p + n + extra
        for extent, s, p, n, extra in zip(plane_of(x), step, low, size, more, strict=True)
    )
    if min(height, width) < 1:
        raise GeometryError(f"conv_transpose2d leaves nothing of a map of {plane_of(x)}; use less padding")
    field = _Transposed(size, step, low, (height, width))
    x, (weight, bias) = _lowered_and_entered(x, weight, bias)

    def compute(window: Tensor, box: Box, _: _Pair) -> Tensor:
        seen = field.input_box(box)
        # Outputs beyond the last window have no input; they are cut off or padded below.
        out = F.conv_transpose2d(window, weight, None, step, 0, 0, groups, spread)
        start = tuple(at + p - i * s for at, p, i, s in zip(box.start, low, seen.start, step, strict=True))
        (top, left), (rows, columns) = start, box.shape
        out = F.pad(out, (-left, left + columns - out.shape[3], -top, top + rows - out.shape[2]))
        return out if bias is None else out + bias[:, None, None]

    return windowed(x, field, weight.shape[1] * groups, compute, weight, bias)


@rule("pad")
def pad(
    input: DistributedMap, pad: Any, mode: str = "constant", value: float | None = None
) -> DistributedMap:
    """Pad with a constant or with pixels of the map, or crop if negative."""
    if mode != "constant":
        if mode not in MODES or len(pad) != 4:
            raise UserError(
                f"a distributed map can be padded by four numbers in mode constant, {', '.join(MODES)}, "
                f"got {len(pad)} numbers and {mode!r}"
            )
        return pad_with_pixels(input, pad, mode)
    sides = [*pad, *[0] * (8 - len(pad))]
    if any(sides[4:]):
        raise UserError("a distributed map can be padded in y and x only, not in channels or images")
    low, high = (sides[2], sides[0]), (sides[3], sides[1])
    field = Strided((1, 1), (1, 1), low, _outputs(plane_of(input), (1, 1), (1, 1), low, high, "pad"))
    return windowed(input, field, input.shape[1], lambda window, _, __: window.clone(), fill=value or 0.0)
