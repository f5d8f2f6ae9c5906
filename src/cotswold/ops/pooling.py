"""L2 pooling: the root of a sum of squares over a window (Coates et al. 2013, section 3).

Knows: sums over square windows and their adjoint, one axis at a time. Does not know: modules, layers below.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cotswold.errors import UserError
from cotswold.geometry import MapShape, Smoothing, Window
from cotswold.ops.layout import images_last
from cotswold.ops.reverse_mode import apply


def _sum_along(x: Tensor, dim: int, size: int) -> Tensor:
    """Sums over every ``size`` neighbours inside the map, by doubling: few additions and no cancellation."""
    total, summed, power, width = None, 0, x, 1
    extent = x.shape[dim] - size + 1
    while True:
        if size & width:
            part = power.narrow(dim, summed, extent)
            total = part if total is None else total + part
            summed += width
        if summed == size:
            assert total is not None
            return total
        length = power.shape[dim] - width
        power = power.narrow(dim, 0, length) + power.narrow(dim, width, length)
        width *= 2


def _padded(x: Tensor, dim: int, low: int, high: int) -> Tensor:
    """``x`` with zeros before and after along one axis."""
    if low == high == 0:
        return x
    shape = list(x.shape)
    shape[dim] = low
    before = x.new_zeros(shape)
    shape[dim] = high
    return torch.cat((before, x, x.new_zeros(shape)), dim)


def box_sum(x: Tensor, window: Window) -> Tensor:
    """Sums over a square window of step 1 along both axes of ``(image, channel, y, x)``."""
    physical = x.permute(2, 3, 1, 0)
    for dim in (0, 1):
        physical = _sum_along(_padded(physical, dim, window.low, window.high), dim, window.size)
    return physical.permute(3, 2, 0, 1)


def box_spread(y: Tensor, window: Window) -> Tensor:
    """The adjoint of ``box_sum``: every output is handed to all the inputs of its window."""
    reach = window.size - 1
    return box_sum(y, Window(window.size, 1, reach - window.low, reach - window.high))


class _L2Pool(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, size: int, keep: bool, epsilon: float) -> Tensor:
        return (box_sum(x * x, Smoothing(size, keep).window) + epsilon).sqrt()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, bool, float], output: Tensor) -> None:
        x, ctx.size, ctx.keep, _ = inputs
        ctx.save_for_backward(x, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        x, pooled = ctx.saved_tensors
        return x * box_spread(grad / pooled, Smoothing(ctx.size, ctx.keep).window), None, None, None


def l2_pool(x: Tensor, smoothing: Smoothing, epsilon: float = 1e-6) -> Tensor:
    """``sqrt(sum of x² over a square window + epsilon)``, map by map, at step 1; same shape if ``keep``.

    ``x`` is ``(image, channel, y, x)``, any strides; the images of the result are last. Differentiable any
    number of times in reverse. Raises UserError unless ``epsilon`` is positive (the root has no slope at 0),
    GeometryError where the window does not fit, ForwardModeError in forward mode.
    """
    if not epsilon > 0:
        raise UserError(f"l2_pool needs a positive epsilon under the root, such as 1e-6, not {epsilon}")
    x = images_last(x)
    smoothing.output(MapShape(*x.shape[1:]))
    return apply("l2_pool", _L2Pool, x, smoothing.size, smoothing.keep, epsilon)
