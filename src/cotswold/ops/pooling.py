"""L2 pooling: the root of a sum of squares over a window (Coates et al. 2013, section 3).

Knows: sums over square windows and their adjoint. Does not know: modules, layers below.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

from cotswold.errors import UserError
from cotswold.geometry import MapShape, Smoothing
from cotswold.ops.layout import empty_map, images_last
from cotswold.ops.reverse_mode import apply


def _planes(x: Tensor) -> Tensor:
    """A map as one picture ``(1, channel * image, y, x)``, all images of a place side by side."""
    height, width = x.shape[2:]
    planes = x.shape[0] * x.shape[1]
    return x.permute(2, 3, 1, 0).reshape(1, height, width, planes).permute(0, 3, 1, 2)


def _maps(planes: Tensor, like: Tensor) -> Tensor:
    """The inverse of ``_planes``: as many images and channels as ``like``."""
    physical = planes[0].permute(1, 2, 0)
    images, channels = like.shape[:2]
    return physical.reshape(*physical.shape[:2], channels, images).permute(3, 2, 0, 1)


def _ahead(smoothing: Smoothing) -> int:
    """Rows that torch's symmetrical padding adds in front of an even window that looks one further ahead."""
    return 1 if smoothing.keep and smoothing.size % 2 == 0 else 0


def box_sum(x: Tensor, smoothing: Smoothing) -> Tensor:
    """Sums over a square window of step 1 in ``(image, channel, y, x)``, without cancellation."""
    if x.shape[0] == 0:  # torch refuses to pool no planes
        return empty_map(x, 0, smoothing.output(MapShape(*x.shape[1:])))
    padding, ahead = (smoothing.size // 2 if smoothing.keep else 0), _ahead(smoothing)
    planes = avg_pool2d(_planes(x), smoothing.size, 1, padding, divisor_override=1)
    return _maps(planes[:, :, ahead:, ahead:], x)


def box_spread(y: Tensor, x: Tensor, smoothing: Smoothing) -> Tensor:
    """The adjoint of ``box_sum``, where ``x`` was its input: every output is handed to all of its window."""
    if x.shape[0] == 0:
        return torch.zeros_like(x)
    padding, ahead = (smoothing.size // 2 if smoothing.keep else 0), _ahead(smoothing)
    planes, size = pad(_planes(y), (ahead, 0, ahead, 0)) if ahead else _planes(y), [smoothing.size] * 2
    spread = torch.ops.aten.avg_pool2d_backward(
        planes, _planes(x), size, [1, 1], [padding] * 2, False, True, 1
    )
    return _maps(spread, x)


class _L2Pool(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, size: int, keep: bool, epsilon: float) -> Tensor:
        return box_sum(x * x, Smoothing(size, keep)).add_(epsilon).sqrt_()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, bool, float], output: Tensor) -> None:
        x, ctx.size, ctx.keep, _ = inputs
        ctx.save_for_backward(x, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        x, pooled = ctx.saved_tensors
        return x * box_spread(grad / pooled, x, Smoothing(ctx.size, ctx.keep)), None, None, None


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
