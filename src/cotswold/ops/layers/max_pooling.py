"""Max pooling over maps with images last, with torch's values and gradients.

Knows: which tensors the kernel takes, the derivatives of any order. Does not know: modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from cotswold.errors import GeometryError
from cotswold.geometry import MapShape, Window
from cotswold.kernels.available import fallback_to_torch, has_cpu_kernel
from cotswold.kernels.operands import NOWHERE
from cotswold.ops.memory_format import empty_map, images_last_no_grad
from cotswold.ops.pooling import workers
from cotswold.ops.reverse_mode import apply, is_eager

PoolActivation = Literal["identity", "relu"]
"""Activation of the maxima."""
Extent = int | tuple[int, int]
"""A number for y and x, or one for both."""
Windows = tuple[Window, Window]
"""Windows along y and x."""


@fallback_to_torch
def _pool(x: Tensor, windows: Windows, relu: bool, keep_places: bool) -> tuple[Tensor, Tensor | None]:
    """Maxima, and the number of the maximum's position in each window if it is wanted."""
    if not has_cpu_kernel(x):  # a kernel has failed its self-test
        return _plain_pool(x, windows, relu)
    from cotswold.kernels.maps import max_pool

    x, shape = images_last_no_grad(x), _output(x, windows)
    out = empty_map(x, x.shape[0], shape)
    places = empty_map(x, x.shape[0], shape, torch.uint8) if keep_places else None
    max_pool(x, out, places, windows, relu, workers(x))
    return out, places


def _output(x: Tensor, windows: Windows) -> MapShape:
    y, along = windows
    return MapShape(x.shape[1], y.outputs(x.shape[2]), along.outputs(x.shape[3]))


def _arguments(windows: Windows) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Size, stride and padding as torch takes them."""
    y, x = windows
    return (y.size, x.size), (y.stride, x.stride), (y.pad_before, x.pad_before)


def _plain_pool(x: Tensor, windows: Windows, relu: bool) -> tuple[Tensor, Tensor]:
    size, stride, padding = _arguments(windows)
    found, at = F.max_pool2d(x, size, stride, padding, return_indices=True)
    rows, columns = _starts(found, windows)
    places = (at // x.shape[3] - rows) * size[1] + at % x.shape[3] - columns
    if relu:
        places, found = torch.where(found <= 0, NOWHERE, places), torch.relu(found)
    return found, places.to(torch.uint8)


@fallback_to_torch
def _gradient(grad: Tensor, places: Tensor, windows: Windows, shape: MapShape) -> Tensor:
    if not has_cpu_kernel(grad):
        return _plain_gradient(grad, places, windows, shape)
    from cotswold.kernels.maps import max_pool_gradient

    grad, places = images_last_no_grad(grad), images_last_no_grad(places)
    out = empty_map(grad, grad.shape[0], shape)
    max_pool_gradient(grad, places, out, windows, workers(grad))
    return out


def _plain_gradient(grad: Tensor, places: Tensor, windows: Windows, shape: MapShape) -> Tensor:
    flat, values = _positions(places, windows, shape), torch.where(places == NOWHERE, 0, grad)
    extents = (*places.shape[:2], shape.height, shape.width)
    zeros = torch.zeros(extents, dtype=grad.dtype, device=grad.device).flatten(2)
    return zeros.scatter_add(2, flat, values.reshape(flat.shape)).reshape(extents)


def _starts(out: Tensor, windows: Windows) -> tuple[Tensor, Tensor]:
    """Rows and columns at which windows start."""
    y, x = windows
    rows = torch.arange(out.shape[2], device=out.device)[:, None] * y.stride - y.pad_before
    return rows, torch.arange(out.shape[3], device=out.device) * x.stride - x.pad_before


def _positions(places: Tensor, windows: Windows, shape: MapShape) -> Tensor:
    """Positions of the maxima ``(image, channel, output)`` in a plane; 0 for those at no position."""
    rows, columns = _starts(places, windows)
    number, width = places.to(torch.int64), windows[1].size
    flat = (rows + number // width) * shape.width + columns + number % width
    return torch.where(places == NOWHERE, 0, flat).flatten(2)


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, windows: Windows, relu: bool) -> Tensor:
        out, places = _pool(x, windows, relu, keep_places=True)
        ctx.windows, ctx.shape = windows, MapShape(*x.shape[1:])
        ctx.save_for_backward(places)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        if not is_eager(grad):  # torch maps over gradients, for example
            return _plain_gradient(grad, places, ctx.windows, ctx.shape), None, None
        if torch.is_grad_enabled() and grad.requires_grad:
            return apply("max_pool2d", _MaxPoolGradient, grad, places, ctx.windows, ctx.shape), None, None
        return _gradient(grad, places, ctx.windows, ctx.shape), None, None


class _MaxPoolGradient(torch.autograd.Function):
    """The gradient, which is linear: its own derivative selects the values at the same positions."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, places: Tensor, windows: Windows, shape: MapShape) -> Tensor:
        ctx.windows, ctx.shape = windows, shape
        ctx.save_for_backward(places)
        return _gradient(grad, places, windows, shape)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, None, None, None]:
        (places,) = ctx.saved_tensors
        flat = _positions(places, ctx.windows, ctx.shape)
        found = above.flatten(2).gather(2, flat).view(places.shape)
        return torch.where(places == NOWHERE, 0, found), None, None, None


def max_pool2d(
    x: Tensor,
    kernel_size: Extent,
    stride: Extent | None = None,
    padding: Extent = 0,
    activation: PoolActivation = "identity",
) -> Tensor:
    """Return the maximum of every window of each channel: values and gradients of torch's ``max_pool2d``.

    The first maximum in reading order receives the gradient; a NaN is the maximum of its windows. On the CPU
    a kernel computes float32 and float64, with images in the vector lanes, and keeps one byte an output for
    backward instead of the input. Torch computes other dtypes and devices, windows of more than 255
    positions, and all that it compiles, traces, exports or maps.

    Args:
        x: Maps ``(image, channel, y, x)``, any strides.
        kernel_size: Height and width of the window, or one number for both.
        stride: Distance of windows along y and x (the size of the window).
        padding: Positions of minus infinity around the map, at most half of the window.
        activation: ``"relu"`` applies it to the maxima in the same pass; ``"identity"`` does not.

    Returns:
        Maxima ``(image, channel, y, x)``; with images last in memory if the kernel computes them.

    Raises:
        GeometryError: Another number of dimensions, a window that does not fit, too much padding, or an
            unknown activation. For maps that torch computes, torch raises its own errors.

    >>> import torch
    >>> max_pool2d(torch.arange(16.0).view(1, 1, 4, 4), 2)
    tensor([[[[ 5.,  7.],
              [13., 15.]]]])
    """
    if x.dim() != 4:
        raise GeometryError(f"max_pool2d takes maps (image, channel, y, x), got {x.dim()} dimensions")
    if activation not in ("identity", "relu"):
        raise GeometryError(f"max_pool2d takes the activations identity and relu, got {activation!r}")
    stride = kernel_size if stride is None else stride
    relu = activation == "relu"
    windows = kernel_windows(x, kernel_size, stride, padding)
    if windows is None:
        found = F.max_pool2d(x, kernel_size, stride, padding)
        return torch.relu(found) if relu else found
    return pool_windows(x, windows, relu)


def kernel_windows(x: Tensor, size: Extent, stride: Extent, padding: Extent) -> Windows | None:
    """Return the windows along y and x if the kernel computes maxima of these maps, and their gradient.

    Torch computes what it traces, compiles, exports, maps, passes to a mode or differentiates forward.
    Raises GeometryError if the kernel computes these maps and they have no room for the windows.
    """
    if not is_eager(x) or not has_cpu_kernel(x) or x.numel() == 0:
        return None
    windows = _windows(_pair(size), _pair(stride), _pair(padding))
    for axis, window, extent in zip("yx", windows, x.shape[2:], strict=True):
        if not window.outputs(extent):
            raise GeometryError(
                f"a window of {window.size} does not fit {extent} positions along {axis} with padding "
                f"{window.pad_before}; use a smaller window"
            )
    return windows if windows[0].size * windows[1].size <= NOWHERE else None


def pool_windows(x: Tensor, windows: Windows, relu: bool) -> Tensor:
    """Return the maxima of windows that `kernel_windows` returned for these maps."""
    if torch.is_grad_enabled() and x.requires_grad:
        return apply("max_pool2d", _MaxPool, x, windows, relu)
    return _pool(x, windows, relu, keep_places=False)[0]


@lru_cache(maxsize=64)
def _windows(size: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]) -> Windows:
    for pad, extent in zip(padding, size, strict=True):
        if 2 * pad > extent:
            raise GeometryError(f"padding must be at most half of the window of {extent}, got {pad}")
    y, x = (Window(*one) for one in zip(size, stride, padding, padding, strict=True))
    return y, x


def _pair(value: Extent) -> tuple[int, int]:
    return (value[0], value[-1]) if isinstance(value, Sequence) else (value, value)
