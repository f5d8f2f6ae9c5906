"""L2 pooling: the root of a sum of squares over a window (Coates et al. 2013, section 3).

Knows: sums over square windows and their adjoint. Does not know: modules, other layers.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

from cotswold.errors import UserError
from cotswold.geometry import MapShape, Smoothing
from cotswold.kernels.available import fallback_to_torch, has_cpu_kernel
from cotswold.kernels.operands import accumulation_dtype, name_of
from cotswold.ops.memory_format import empty_map, images_last, images_last_no_grad
from cotswold.ops.reverse_mode import apply, differentiate, is_eager, refuse_forward_mode

if TYPE_CHECKING:
    from cotswold.kernels.maps import Workers


def _planes(x: Tensor) -> Tensor:
    """View a map as one image ``(1, channel * image, y, x)``; the images of a position are adjacent."""
    height, width = x.shape[2:]
    planes = x.shape[0] * x.shape[1]
    return x.permute(2, 3, 1, 0).reshape(1, height, width, planes).permute(0, 3, 1, 2)


def _maps(planes: Tensor, like: Tensor) -> Tensor:
    """Inverse of ``_planes``, with the images and channels of ``like``."""
    physical = planes[0].permute(1, 2, 0)
    images, channels = like.shape[:2]
    return physical.reshape(*physical.shape[:2], channels, images).permute(3, 2, 0, 1)


def _extra_rows(smoothing: Smoothing) -> int:
    """Extra rows that torch's symmetric padding adds in front of an even window."""
    return 1 if smoothing.keep and smoothing.size % 2 == 0 else 0


def box_sum(x: Tensor, smoothing: Smoothing) -> Tensor:
    """Sum over a square window of step 1 in ``(image, channel, y, x)``, without cancellation."""
    if x.shape[0] == 0:  # torch cannot pool zero planes
        return empty_map(x, 0, smoothing.output(MapShape(*x.shape[1:])))
    padding, ahead = (smoothing.size // 2 if smoothing.keep else 0), _extra_rows(smoothing)
    planes = avg_pool2d(_planes(x), smoothing.size, 1, padding, divisor_override=1)
    return _maps(planes[:, :, ahead:, ahead:], x)


def box_sum_adjoint(y: Tensor, x: Tensor, smoothing: Smoothing) -> Tensor:
    """Adjoint of ``box_sum`` at the input ``x``: add every output to all positions of its window."""
    if x.shape[0] == 0:
        return torch.zeros_like(x)
    padding, ahead = (smoothing.size // 2 if smoothing.keep else 0), _extra_rows(smoothing)
    planes, size = pad(_planes(y), (ahead, 0, ahead, 0)) if ahead else _planes(y), [smoothing.size] * 2
    spread = torch.ops.aten.avg_pool2d_backward(
        planes, _planes(x), size, [1, 1], [padding] * 2, False, True, 1
    )
    return _maps(spread, x)


def workers(x: Tensor) -> Workers:
    """The processor and the number of threads for a kernel on a map."""
    from cotswold.kernels.machine.processor import this_processor
    from cotswold.kernels.maps import Workers

    here = this_processor()
    assert here is not None, "kernels are usable only where the processor is known"
    return Workers(x.shape[0], name_of(x.dtype), here, torch.get_num_threads())


WIDEST = 21
"""Largest window with a kernel, which is compiled for the window; torch sums over larger ones."""


def _has_kernel(x: Tensor, smoothing: Smoothing) -> bool:
    return smoothing.size <= WIDEST and has_cpu_kernel(x)


@lru_cache(maxsize=256)
def _output(smoothing: Smoothing, channels: int, height: int, width: int) -> MapShape:
    """Cached output shape of a window; not for code that a compiler traces."""
    return smoothing.output(MapShape(channels, height, width))


@torch.library.custom_op("cotswold::l2_pool", mutates_args=())
def _pool_op(x: Tensor, size: int, keep: bool, epsilon: float) -> Tensor:
    refuse_forward_mode("l2_pool", x)
    return _pool(x, Smoothing(size, keep), epsilon)


@fallback_to_torch
def _pool(x: Tensor, smoothing: Smoothing, epsilon: float) -> Tensor:
    if not _has_kernel(x, smoothing):
        return _plain_pool(x, smoothing, epsilon)
    from cotswold.kernels.maps import pool

    x = images_last_no_grad(x)
    out = empty_map(x, x.shape[0], _output(smoothing, *x.shape[1:]))
    pool(x, out, smoothing, epsilon, workers(x))
    return out


@_pool_op.register_fake
def _(x: Tensor, size: int, keep: bool, epsilon: float) -> Tensor:
    return empty_map(x, x.shape[0], Smoothing(size, keep).output(MapShape(*x.shape[1:])))


def _plain_pool(x: Tensor, smoothing: Smoothing, epsilon: float) -> Tensor:
    wide = x.to(accumulation_dtype(x.dtype))
    sums = box_sum(wide * wide, smoothing)  # a slice for an even window; compilers expect a dense map
    out = empty_map(x, x.shape[0], MapShape(*sums.shape[1:]))
    return torch.sqrt(sums.add_(epsilon), out=out)


@torch.library.custom_op("cotswold::l2_pool_gradient", mutates_args=())
def _gradient_op(
    grad: Tensor | None, pooled: Tensor, x: Tensor, size: int, keep: bool, weight: float
) -> Tensor:
    refuse_forward_mode("l2_pool", *((grad,) if grad is not None else ()), pooled, x)
    return _gradient(grad, pooled, x, Smoothing(size, keep), weight)


@fallback_to_torch
def _gradient(grad: Tensor | None, pooled: Tensor, x: Tensor, smoothing: Smoothing, weight: float) -> Tensor:
    if not _has_kernel(x, smoothing):
        return _plain_gradient(grad, pooled, x, smoothing, weight)
    from cotswold.kernels.maps import pool_gradient

    pooled, x = images_last_no_grad(pooled), images_last_no_grad(x)
    grad = images_last_no_grad(grad) if grad is not None else None
    out = empty_map(x, x.shape[0], MapShape(*x.shape[1:]))
    pool_gradient(grad, pooled, x, out, smoothing, weight, workers(x))
    return out


@_gradient_op.register_fake
def _(grad: Tensor | None, pooled: Tensor, x: Tensor, size: int, keep: bool, weight: float) -> Tensor:
    return empty_map(x, x.shape[0], MapShape(*x.shape[1:]))


def _slope(grad: Tensor | None, pooled: Tensor, weight: float) -> Tensor:
    return weight / pooled if grad is None else (grad + weight) / pooled


def _plain_gradient(
    grad: Tensor | None, pooled: Tensor, x: Tensor, smoothing: Smoothing, weight: float
) -> Tensor:
    slope = _slope(grad, pooled, weight).to(accumulation_dtype(x.dtype))
    return images_last_no_grad((x * box_sum_adjoint(slope, x.to(slope.dtype), smoothing)).to(x.dtype))


def merge_vmap_dim(x: Tensor | None, dim: int | None, count: int) -> Tensor | None:
    """Merge a mapped dimension into the images."""
    if x is None:
        return None
    mapped = x.movedim(dim, 0) if dim is not None else x.expand(count, *x.shape)
    return mapped.flatten(0, 1)


def split_vmap_dim(out: Tensor, count: int) -> Tensor:
    """Inverse of ``merge_vmap_dim``."""
    return out.reshape(count, out.shape[0] // count, *out.shape[1:])


class _L2Pool(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, size: int, keep: bool, epsilon: float) -> Tensor:
        if is_eager(x):
            return _pool(x, Smoothing(size, keep), epsilon)
        out: Tensor = _pool_op(x, size, keep, epsilon)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, bool, float], output: Tensor) -> None:
        x, ctx.size, ctx.keep, ctx.epsilon = inputs
        ctx.save_for_backward(x)
        # not saved for backward: torch would refuse a backward pass after the caller changed it in place
        ctx.output = (output.detach(), output._version) if is_eager(output) else None

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (x,) = ctx.saved_tensors
        if ctx.output is not None and is_eager(grad) and not torch.is_grad_enabled():
            (output, version), ctx.output = ctx.output, None  # not kept after the pass
            if output._version == version:
                return _gradient(grad, output, x, Smoothing(ctx.size, ctx.keep), 0.0), None, None, None
        pooled = apply("l2_pool", _L2Pool, x, ctx.size, ctx.keep, ctx.epsilon)
        return apply("l2_pool", _PoolGradient, grad, pooled, x, ctx.size, ctx.keep, 0.0), None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, size: int, keep: bool, epsilon: float
    ) -> tuple[Tensor, int]:
        folded = merge_vmap_dim(x, in_dims[0], info.batch_size)
        return split_vmap_dim(apply("l2_pool", _L2Pool, folded, size, keep, epsilon), info.batch_size), 0


class _PoolGradient(torch.autograd.Function):
    """``x * box_sum_adjoint((grad + weight) / pooled)``; torch differentiates it further."""

    @staticmethod
    def forward(
        grad: Tensor | None, pooled: Tensor, x: Tensor, size: int, keep: bool, weight: float
    ) -> Tensor:
        if is_eager(grad, pooled, x):
            return _gradient(grad, pooled, x, Smoothing(size, keep), weight)
        out: Tensor = _gradient_op(grad, pooled, x, size, keep, weight)
        return out

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor | None, Tensor, Tensor, int, bool, float], output: Tensor
    ) -> None:
        grad, pooled, x, ctx.size, ctx.keep, ctx.weight = inputs
        ctx.save_for_backward(grad, pooled, x)

    @staticmethod
    def backward(
        ctx: Any, above: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None]:
        grad, pooled, x = ctx.saved_tensors
        smoothing, (wants_grad, wants_pooled, wants_x, *_) = (
            Smoothing(ctx.size, ctx.keep),
            ctx.needs_input_grad,
        )
        dtype, wide = x.dtype, accumulation_dtype(x.dtype)  # the product of two float16 numbers may overflow
        above, pooled, x = above.to(wide), pooled.to(wide), x.to(wide)
        slope = _slope(None if grad is None else grad.to(wide), pooled, ctx.weight)
        to_x = (above * box_sum_adjoint(slope, x, smoothing)).to(dtype) if wants_x else None
        to_slope = box_sum(above * x, smoothing) / pooled if wants_grad or wants_pooled else None
        to_grad = to_slope.to(dtype) if wants_grad and to_slope is not None and grad is not None else None
        to_pooled = (-to_slope * slope).to(dtype) if wants_pooled and to_slope is not None else None
        return to_grad, to_pooled, to_x, None, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        grad: Tensor | None,
        pooled: Tensor,
        x: Tensor,
        size: int,
        keep: bool,
        weight: float,
    ) -> tuple[Tensor, int]:
        count = info.batch_size
        folded = [
            merge_vmap_dim(one, dim, count) for one, dim in zip((grad, pooled, x), in_dims[:3], strict=True)
        ]
        return split_vmap_dim(apply("l2_pool", _PoolGradient, *folded, size, keep, weight), count), 0


differentiate(_pool_op, _L2Pool)
differentiate(_gradient_op, _PoolGradient)


def pool_backward(
    x: Tensor, pooled: Tensor, smoothing: Smoothing, grad: Tensor | None, weight: float
) -> Tensor:
    """Return the gradient of ``<grad, pooled> + weight sum pooled``.

    It is ``x * box_sum_adjoint((grad + weight) / pooled)``.

    ``pooled`` is ``l2_pool(x, smoothing)``; ``grad`` has its shape, or is None for zeros. Maps are ``(image,
    channel, y, x)``, any strides; the result has the images last.
    """
    return apply("l2_pool", _PoolGradient, grad, pooled, x, smoothing.size, smoothing.keep, weight)


LEAST = 1e-7
"""Least number that every dtype can tell from 0: float16 has subnormal numbers down to 6e-8."""


def positive_range(dtype: torch.dtype) -> tuple[float, float]:
    """Least and greatest number that is positive and finite in a dtype of maps.

    Processors may flush subnormal numbers to 0, so only float16 counts them, down to LEAST. Raises UserError
    for a dtype that is not floating point.
    """
    if not dtype.is_floating_point:
        raise UserError(f"pooling and normalisation need floating-point maps, got {dtype}; use .float()")
    limits = torch.finfo(dtype)
    return min(limits.smallest_normal, LEAST), limits.max


def check_range(value: float, least: float, most: float, what: str, dtype: torch.dtype) -> None:
    """Raise UserError, starting with ``what``, unless a value lies in a range."""
    if not least <= value <= most:
        raise UserError(f"{what}, from {least:.3g} to {most:.3g} for {dtype}, got {value}")


def check_epsilon(epsilon: float, dtype: torch.dtype) -> None:
    """Raise UserError unless ``epsilon`` is positive and finite in a dtype."""
    what = "l2_pool needs a positive epsilon under the root, such as 1e-6"
    check_range(epsilon, *positive_range(dtype), what, dtype)


def pooled_values(x: Tensor, smoothing: Smoothing, epsilon: float) -> Tensor:
    """`l2_pool` for use inside an operation: not differentiable."""
    check_epsilon(epsilon, x.dtype)
    return _pool(x, smoothing, epsilon)


def pooling_gradient(
    x: Tensor, pooled: Tensor, smoothing: Smoothing, grad: Tensor | None, weight: float
) -> Tensor:
    """`pool_backward` for use inside an operation: not differentiable."""
    return _gradient(grad, pooled, x, smoothing, weight)


def l2_pool(x: Tensor, smoothing: Smoothing, epsilon: float = 1e-6) -> Tensor:
    """Return ``sqrt(sum of x² over a square window + epsilon)`` of each channel, at stride 1.

    Differentiable any number of times in reverse mode.

    Args:
        x: Maps ``(image, channel, y, x)``, any strides.
        smoothing: Window. With ``keep`` the output has the input's shape; else it shrinks by ``size - 1``.
        epsilon: Constant under the root, above 0: the root has no slope at 0.

    Returns:
        Pooled maps ``(image, channel, y, x)``, with images last in memory.

    Raises:
        UserError: ``epsilon`` is not positive and finite in the dtype of ``x``.
        GeometryError: The window does not fit.
        ForwardModeError: Forward-mode differentiation.

    Source:
        Coates et al. 2013, section 3.
    """
    x = images_last(x)
    check_epsilon(epsilon, x.dtype)
    smoothing.output(MapShape(*x.shape[1:]))
    if is_eager(x) and not (x.requires_grad and torch.is_grad_enabled()):
        return _pool(x, smoothing, epsilon)
    return apply("l2_pool", _L2Pool, x, smoothing.size, smoothing.keep, epsilon)
