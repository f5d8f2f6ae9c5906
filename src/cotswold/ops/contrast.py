"""Local contrast normalisation, subtractive then divisive (Coates et al. 2013, section 3, as Le et al. 2012).

Knows: ``g = h - sum G h``, ``y = g / max(c, sqrt(sum G g²))``, where G is a Gaussian over a window and all
maps that sums to 1. Does not know: modules, layers below.

As G weighs every map alike, ``sum G h`` is the Gaussian mean of one map, the mean of all maps; along each
axis that is a product with a small banded matrix.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cotswold.errors import UserError
from cotswold.geometry import MapShape, Smoothing, Window
from cotswold.ops.layout import images_last
from cotswold.ops.products import accumulator
from cotswold.ops.reverse_mode import apply

FLOOR = 0.01
"""The least divisor, ``c`` of Le et al. 2012."""


def gaussian_means(extent: int, smoothing: Smoothing, like: Tensor) -> Tensor:
    """The banded matrix ``(output, input)`` of Gaussian means along one axis; every row sums to 1.

    Sigma is a quarter of the window (1.25 pixels for 5); at the border the mean is over what lies inside.
    """
    window = smoothing.window
    inputs = torch.arange(extent, dtype=like.dtype, device=like.device)
    starts = torch.arange(window.outputs(extent), dtype=like.dtype, device=like.device) - window.low
    place = inputs - starts[:, None]
    weights = torch.exp(-((place - (smoothing.size - 1) / 2) ** 2) / (2 * (smoothing.size / 4) ** 2))
    weights = torch.where((place >= 0) & (place < smoothing.size), weights, 0)
    return weights / weights.sum(1, keepdim=True)


def _smooth(x: Tensor, along_y: Tensor, along_x: Tensor) -> Tensor:
    """A separable linear map of both axes of ``(image, 1, y, x)``."""
    return torch.einsum("yi,ncij,xj->ncyx", along_y, x, along_x)


def _crop(x: Tensor, smoothing: Smoothing) -> Tensor:
    """The positions whose window lies inside the map."""
    if smoothing.keep:
        return x
    window = Window.same(smoothing.size)
    return x[:, :, window.low : x.shape[2] - window.high, window.low : x.shape[3] - window.high]


def _uncrop(x: Tensor, smoothing: Smoothing) -> Tensor:
    """The adjoint of ``_crop``: zeros around."""
    if smoothing.keep or smoothing.size == 1:
        return x
    window = Window.same(smoothing.size)
    images, channels, height, width = x.shape
    reach = smoothing.size - 1
    out = x.new_zeros((height + reach, width + reach, channels, images)).permute(3, 2, 0, 1)
    out[:, :, window.low : window.low + height, window.low : window.low + width] = x
    return out


class _Steps:
    """Both steps of the normalisation on maps of one extent, and their intermediate values."""

    def __init__(self, h: Tensor, smoothing: Smoothing, floor: float) -> None:
        self.smoothing, self.floor = smoothing, floor
        inner = smoothing.output(MapShape(*h.shape[1:]))
        wide = h.new_empty(0, dtype=accumulator(h.dtype))
        self.first = tuple(gaussian_means(extent, smoothing, wide) for extent in h.shape[2:])
        self.second = tuple(gaussian_means(extent, smoothing, wide) for extent in (inner.height, inner.width))
        mean = _smooth(h.mean(1, keepdim=True, dtype=wide.dtype), *self.first)
        self.centred = _crop(h, smoothing) - mean.to(h.dtype)
        power = _smooth((self.centred * self.centred).mean(1, keepdim=True, dtype=wide.dtype), *self.second)
        self.divisor = power.clamp_min(floor**2).sqrt()
        self.above = power > floor**2

    def output(self) -> Tensor:
        return _crop(self.centred, self.smoothing) / self.divisor.to(self.centred.dtype)

    def backward(self, grad: Tensor) -> Tensor:
        """The gradient by ``h`` from the gradient by the output; itself differentiable."""
        channels, dtype = grad.shape[1], grad.dtype
        over = grad / self.divisor.to(dtype)
        slope = (over * _crop(self.centred, self.smoothing)).sum(1, keepdim=True, dtype=self.divisor.dtype)
        slope = torch.where(self.above, slope / self.divisor**2, 0)
        to_power = _smooth(slope, *(matrix.T for matrix in self.second)) / channels
        inner = _uncrop(over, self.smoothing).addcmul(self.centred, to_power.to(dtype), value=-1)
        to_mean = _smooth(inner.sum(1, keepdim=True, dtype=slope.dtype), *(matrix.T for matrix in self.first))
        return _uncrop(inner, self.smoothing) - (to_mean / channels).to(dtype)


class _ContrastNorm(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(h: Tensor, size: int, keep: bool, floor: float) -> Tensor:
        return _Steps(h, Smoothing(size, keep), floor).output()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, bool, float], output: Tensor) -> None:
        h, ctx.size, ctx.keep, ctx.floor = inputs
        ctx.save_for_backward(h)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (h,) = ctx.saved_tensors
        return contrast_norm_backward(grad, h, Smoothing(ctx.size, ctx.keep), ctx.floor), None, None, None


def contrast_norm_backward(grad: Tensor, h: Tensor, smoothing: Smoothing, floor: float = FLOOR) -> Tensor:
    """The gradient by ``h`` of ``<grad, contrast_norm(h)>``; keeps nothing of the forward pass but ``h``."""
    return _Steps(h, smoothing, floor).backward(grad)


def contrast_norm(x: Tensor, smoothing: Smoothing, floor: float = FLOOR) -> Tensor:
    """Subtract the local mean, then divide by the local root mean square, at least ``floor``.

    Means are over the window and all maps, weighted by a Gaussian of sigma = window / 4 that sums to 1. ``x``
    is ``(image, channel, y, x)``, any strides. Without ``keep`` each of the two steps takes ``size - 1`` off
    height and width; with it, means at the border are over what lies inside the map. Differentiable any
    number of times in reverse. Raises UserError unless ``floor`` is positive, GeometryError where the windows
    do not fit, ForwardModeError in forward mode.
    """
    if not floor > 0:
        raise UserError(f"contrast_norm needs a positive floor, such as {FLOOR}, not {floor}")
    x = images_last(x)
    smoothing.output(smoothing.output(MapShape(*x.shape[1:])))
    return apply("contrast_norm", _ContrastNorm, x, smoothing.size, smoothing.keep, floor)
