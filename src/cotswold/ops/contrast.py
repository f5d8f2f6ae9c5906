"""Local contrast normalisation, subtractive then divisive (Coates et al. 2013, section 3, as Le et al. 2012).

Knows: ``g = h - sum G h``, ``y = g / max(c, sqrt(sum G g²))``, where G is a Gaussian over a window and all
channels that sums to 1. Does not know: modules, other layers.

G weighs every channel equally, so ``sum G h`` is the Gaussian mean of the channel mean. Along each axis that
is a product with a small banded matrix.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cotswold.geometry import MapShape, Smoothing, Window
from cotswold.kernels.available import fallback_to_torch, has_cpu_kernel
from cotswold.kernels.operands import accumulation_dtype
from cotswold.ops.memory_format import empty_map, images_last, images_last_no_grad
from cotswold.ops.pooling import check_range, merge_vmap_dim, positive_range, split_vmap_dim, workers
from cotswold.ops.reverse_mode import apply, differentiate, is_eager, refuse_forward_mode

if TYPE_CHECKING:
    from cotswold.kernels.maps import Bands, Normalisation, Workers
    from cotswold.kernels.maps.normalisation import Statistics

FLOOR = 0.01
"""Least divisor, ``c`` of Le et al. 2012."""


def gaussian_means(extent: int, smoothing: Smoothing, like: Tensor) -> Tensor:
    """Banded matrix ``(output, input)`` of Gaussian means along one axis; every row sums to 1.

    Sigma is a quarter of the window (1.25 pixels for 5). At the border the mean covers the pixels inside the
    map.
    """
    window = smoothing.window
    inputs = torch.arange(extent, dtype=like.dtype, device=like.device)
    starts = torch.arange(window.outputs(extent), dtype=like.dtype, device=like.device) - window.pad_before
    place = inputs - starts[:, None]
    weights = torch.exp(-((place - (smoothing.size - 1) / 2) ** 2) / (2 * (smoothing.size / 4) ** 2))
    weights = torch.where((place >= 0) & (place < smoothing.size), weights, 0)
    return weights / weights.sum(1, keepdim=True)


def _smooth(x: Tensor, along_y: Tensor, along_x: Tensor) -> Tensor:
    """Apply a separable linear map to both axes of ``(image, 1, y, x)``."""
    return torch.einsum("yi,ncij,xj->ncyx", along_y, x, along_x)


def _crop(x: Tensor, smoothing: Smoothing) -> Tensor:
    """Keep the positions whose window lies inside the map."""
    if smoothing.keep:
        return x
    window = Window.same_padding(smoothing.size)
    return x[
        :,
        :,
        window.pad_before : x.shape[2] - window.pad_after,
        window.pad_before : x.shape[3] - window.pad_after,
    ]


def _uncrop(x: Tensor, smoothing: Smoothing) -> Tensor:
    """Adjoint of ``_crop``: pad with zeros."""
    if smoothing.keep or smoothing.size == 1:
        return x
    window = Window.same_padding(smoothing.size)
    images, channels, height, width = x.shape
    reach = smoothing.size - 1
    out = x.new_zeros((height + reach, width + reach, channels, images)).permute(3, 2, 0, 1)
    out[
        :, :, window.pad_before : window.pad_before + height, window.pad_before : window.pad_before + width
    ] = x
    return out


class _Steps:
    """Both steps of the normalisation on maps of one extent, with their intermediate values.

    Values are in the accumulation dtype: float16 cannot hold the square of a number above 255.
    """

    def __init__(self, h: Tensor, smoothing: Smoothing, floor: float) -> None:
        self.smoothing, self.dtype = smoothing, h.dtype
        h = h.to(accumulation_dtype(h.dtype))
        inner = smoothing.output(MapShape(*h.shape[1:]))
        like = h.new_empty(0)
        self.first = tuple(gaussian_means(extent, smoothing, like) for extent in h.shape[2:])
        self.second = tuple(gaussian_means(extent, smoothing, like) for extent in (inner.height, inner.width))
        self.centred = _crop(h, smoothing) - _smooth(h.mean(1, keepdim=True), *self.first)
        power = _smooth((self.centred * self.centred).mean(1, keepdim=True), *self.second)
        self.divisor = power.clamp_min(floor**2).sqrt()
        self.above = ~(power <= floor**2)  # not (power > floor²): NaN power gives NaN slope

    def output(self) -> Tensor:
        return (_crop(self.centred, self.smoothing) / self.divisor).to(self.dtype)

    def backward(self, grad: Tensor) -> Tensor:
        """Gradient with respect to ``h`` from the gradient of the output; itself differentiable."""
        channels = grad.shape[1]
        over = grad.to(self.divisor.dtype) / self.divisor
        slope = (over * _crop(self.centred, self.smoothing)).sum(1, keepdim=True)
        slope = torch.where(self.above, slope / self.divisor**2, 0)
        to_power = _smooth(slope, *(matrix.T for matrix in self.second)) / channels
        inner = _uncrop(over, self.smoothing).addcmul(self.centred, to_power, value=-1)
        to_mean = _smooth(inner.sum(1, keepdim=True), *(matrix.T for matrix in self.first))
        return (_uncrop(inner, self.smoothing) - to_mean / channels).to(self.dtype)


@lru_cache(maxsize=256)
def _bands(shape: MapShape, smoothing: Smoothing, dtype: torch.dtype) -> Bands:
    """Weights of both means in the kernels' form: one band per output, and one per input."""
    from cotswold.kernels.maps import Bands

    wide, inner = torch.empty(0, dtype=torch.float64, device="cpu"), smoothing.output(shape)
    extents = (shape.height, shape.width, inner.height, inner.width)
    matrices = [gaussian_means(extent, smoothing, wide) for extent in extents]
    low, size = smoothing.window.pad_before, smoothing.size
    forward = [_band(matrix, size, low).to(dtype) for matrix in matrices]
    transposed = [_band(matrix.T, size, size - 1 - low).to(dtype) for matrix in matrices]
    return Bands((*forward,), (*transposed,))  # type: ignore[arg-type]  # four of each


def _band(matrix: Tensor, size: int, low: int) -> Tensor:
    """Band around the diagonal: ``size`` weights for every output, from ``low`` inputs before it."""
    outputs, inputs = matrix.shape
    here = matrix.device
    columns = torch.arange(outputs, device=here)[:, None] - low + torch.arange(size, device=here)
    inside = (columns >= 0) & (columns < inputs)
    return torch.where(inside, matrix.gather(1, columns.clamp(0, inputs - 1)), 0).contiguous()


@lru_cache(maxsize=64)
def _normalisation(
    shape: MapShape, smoothing: Smoothing, floor: float, dtype: torch.dtype, who: Workers
) -> Normalisation:
    """Normalisation of maps of one shape in the kernels' form; it caches their prepared arguments."""
    from cotswold.kernels.maps import Normalisation

    return Normalisation(shape, smoothing, floor, _bands(shape, smoothing, dtype), who)


def _output_shape(h: Tensor, smoothing: Smoothing) -> MapShape:
    return smoothing.output(smoothing.output(MapShape(*h.shape[1:])))


@torch.library.custom_op("cotswold::contrast_norm", mutates_args=())
def _norm_op(h: Tensor, size: int, keep: bool, floor: float) -> Tensor:
    refuse_forward_mode("contrast_norm", h)
    return _normalised(h, Smoothing(size, keep), floor)[0]


@fallback_to_torch
def _normalised(
    h: Tensor, smoothing: Smoothing, floor: float, measure: bool = False
) -> tuple[Tensor, Statistics | None]:
    """Normalised maps; with ``measure`` a kernel also returns what its gradient needs."""
    if not has_cpu_kernel(h):
        return images_last_no_grad(_Steps(h, smoothing, floor).output()), None
    h = images_last_no_grad(h)
    out = empty_map(h, h.shape[0], _output_shape(h, smoothing))
    kernel = _normalisation(MapShape(*h.shape[1:]), smoothing, floor, h.dtype, workers(h))
    if measure:
        return out, kernel.normalise_and_measure(h, out)
    kernel.normalise(h, out)
    return out, None


@_norm_op.register_fake
def _(h: Tensor, size: int, keep: bool, floor: float) -> Tensor:
    return empty_map(h, h.shape[0], _output_shape(h, Smoothing(size, keep)))


@torch.library.custom_op("cotswold::contrast_norm_gradient", mutates_args=())
def _gradient_op(grad: Tensor, h: Tensor, size: int, keep: bool, floor: float) -> Tensor:
    refuse_forward_mode("contrast_norm", grad, h)
    return _gradient(grad, h, Smoothing(size, keep), floor)


@fallback_to_torch
def _gradient(
    grad: Tensor, h: Tensor, smoothing: Smoothing, floor: float, statistics: Statistics | None = None
) -> Tensor:
    if not has_cpu_kernel(h):
        return images_last_no_grad(_Steps(h, smoothing, floor).backward(grad))
    grad, h = images_last_no_grad(grad), images_last_no_grad(h)
    shape = MapShape(*h.shape[1:])
    out = empty_map(h, h.shape[0], shape)
    _normalisation(shape, smoothing, floor, h.dtype, workers(h)).gradient(grad, h, out, statistics)
    return out


@_gradient_op.register_fake
def _(grad: Tensor, h: Tensor, size: int, keep: bool, floor: float) -> Tensor:
    return empty_map(h, h.shape[0], MapShape(*h.shape[1:]))


class _MeasuredNorm(torch.autograd.Function):
    """The normalisation outside of transforms: it keeps statistics, so that backward measures nothing."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, smoothing: Smoothing, floor: float) -> Tensor:
        out, statistics = _normalised(h, smoothing, floor, measure=True)
        ctx.smoothing, ctx.floor = smoothing, floor
        ctx.save_for_backward(h, *(statistics or ()))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        h, *rest = ctx.saved_tensors
        if torch.is_grad_enabled() or not is_eager(grad):
            return contrast_norm_backward(grad, h, ctx.smoothing, ctx.floor), None, None
        statistics = (rest[0], rest[1]) if rest else None
        return _gradient(grad, h, ctx.smoothing, ctx.floor, statistics), None, None


class _ContrastNorm(torch.autograd.Function):
    @staticmethod
    def forward(h: Tensor, size: int, keep: bool, floor: float) -> Tensor:
        out: Tensor = _norm_op(h, size, keep, floor)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, bool, float], output: Tensor) -> None:
        h, ctx.size, ctx.keep, ctx.floor = inputs
        ctx.save_for_backward(h)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (h,) = ctx.saved_tensors
        return apply("contrast_norm", _NormGradient, grad, h, ctx.size, ctx.keep, ctx.floor), None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], h: Tensor, size: int, keep: bool, floor: float
    ) -> tuple[Tensor, int]:
        folded = merge_vmap_dim(h, in_dims[0], info.batch_size)
        return split_vmap_dim(
            apply("contrast_norm", _ContrastNorm, folded, size, keep, floor), info.batch_size
        ), 0


class _NormGradient(torch.autograd.Function):
    """The gradient as a function; torch differentiates it further."""

    @staticmethod
    def forward(grad: Tensor, h: Tensor, size: int, keep: bool, floor: float) -> Tensor:
        if is_eager(grad, h):
            return _gradient(grad, h, Smoothing(size, keep), floor)
        out: Tensor = _gradient_op(grad, h, size, keep, floor)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int, bool, float], output: Tensor) -> None:
        grad, h, ctx.size, ctx.keep, ctx.floor = inputs
        ctx.save_for_backward(grad, h)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        smoothing, floor = Smoothing(ctx.size, ctx.keep), ctx.floor

        def plain(grad: Tensor, h: Tensor) -> Tensor:
            return _Steps(h, smoothing, floor).backward(grad)

        pull = torch.func.vjp(plain, *ctx.saved_tensors)[1]
        to_grad, to_h = pull(above)
        return to_grad, to_h, None, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        grad: Tensor,
        h: Tensor,
        size: int,
        keep: bool,
        floor: float,
    ) -> tuple[Tensor, int]:
        folded = [
            merge_vmap_dim(one, dim, info.batch_size) for one, dim in zip((grad, h), in_dims[:2], strict=True)
        ]
        return split_vmap_dim(
            apply("contrast_norm", _NormGradient, *folded, size, keep, floor), info.batch_size
        ), 0


differentiate(_norm_op, _ContrastNorm)
differentiate(_gradient_op, _NormGradient)


def contrast_norm_backward(grad: Tensor, h: Tensor, smoothing: Smoothing, floor: float = FLOOR) -> Tensor:
    """Gradient of ``<grad, contrast_norm(h)>`` by ``h``; needs nothing else from the forward pass."""
    return apply("contrast_norm", _NormGradient, grad, h, smoothing.size, smoothing.keep, floor)


_NEEDS_FLOOR = f"contrast_norm needs a positive floor, such as {FLOOR}"
"""Formatted at import: torch.compile turns numbers into symbols, which it cannot format."""


def _check_floor(floor: float, dtype: torch.dtype) -> None:
    """Raise UserError unless the dtype holds the floor and its reciprocal, and its sums hold the square."""
    least, most = positive_range(dtype)
    least_square, most_square = positive_range(accumulation_dtype(dtype))
    least, most = max(least, 4 / most, least_square**0.5), min(most, most_square**0.5)
    check_range(floor, least, most, _NEEDS_FLOOR, dtype)


def contrast_norm(x: Tensor, smoothing: Smoothing, floor: float = FLOOR) -> Tensor:
    """Subtract the local mean, then divide by the local root mean square, at least ``floor``.

    Means cover the window and all channels, weighted by a Gaussian of sigma = window / 4 that sums to 1. With
    ``keep``, means at the border cover the pixels inside the map. Differentiable any number of times in
    reverse mode.

    Args:
        x: Maps ``(image, channel, y, x)``, any strides.
        smoothing: Window. Without ``keep``, each of the two steps shrinks height and width by ``size - 1``.
        floor: Least divisor, above 0.

    Returns:
        Normalised maps ``(image, channel, y, x)``, with images last in memory.

    Raises:
        UserError: The dtype cannot hold ``floor``, or its accumulation dtype the square of ``floor``.
        GeometryError: The windows do not fit.
        ForwardModeError: Forward-mode differentiation.

    Source:
        Le et al. 2012; Coates et al. 2013, section 3.
    """
    x = images_last(x)
    _check_floor(floor, x.dtype)
    smoothing.output(smoothing.output(MapShape(*x.shape[1:])))
    if is_eager(x):
        if x.requires_grad and torch.is_grad_enabled():
            return apply("contrast_norm", _MeasuredNorm, x, smoothing, floor)
        return _normalised(x, smoothing, floor)[0]
    return apply("contrast_norm", _ContrastNorm, x, smoothing.size, smoothing.keep, floor)
