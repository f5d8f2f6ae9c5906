"""Modules for L2 pooling and local contrast normalisation.

Knows: their windows. Does not know: the layers before or after them.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from cotswold import ops
from cotswold.errors import GeometryError
from cotswold.geometry import Smoothing
from cotswold.nn.layer_base import as_int, batched, check_floating, check_tensor, refuse_onnx, traced_as_leaf

Padding = Literal[0, "same"]


def _smoothing(size: int, padding: Padding) -> Smoothing:
    if padding not in (0, "same"):
        raise GeometryError(f"padding must be 0 or 'same', got {padding!r}")
    number = as_int(size)
    if number is None or number < 1:
        raise GeometryError(f"the window size must be an integer of at least 1, got {size!r}")
    return Smoothing(number, keep=padding == "same")


class _MapModule(nn.Module):
    """Base of modules with a window over maps ``(image, channel, y, x)`` or one map ``(channel, y, x)``."""

    smoothing: Smoothing

    def _enter(self, x: Tensor) -> None:
        refuse_onnx(self)
        check_tensor(self, x)
        check_floating(self, x)
        if x.dim() not in (3, 4):
            raise GeometryError(
                f"{type(self).__name__} takes maps (image, channel, y, x) or (channel, y, x), "
                f"got {x.dim()} dimensions"
            )


class L2Pool2d(_MapModule):
    """L2 pooling at stride 1: the root of epsilon plus the sum of squares over a window of each channel.

    Args:
        kernel_size: Side of the square window.
        padding: 0 shrinks the map by ``kernel_size - 1``; ``"same"`` keeps its size.
        epsilon: Constant under the root.

    Raises:
        GeometryError: A size below 1 or an unknown padding.

    Source:
        Coates et al. 2013, section 3 (weights 1, a small epsilon under the root).

    >>> import torch
    >>> L2Pool2d(5)(torch.rand(2, 8, 32, 32)).shape
    torch.Size([2, 8, 28, 28])
    """

    def __init__(self, kernel_size: int, padding: Padding = 0, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.smoothing = _smoothing(kernel_size, padding)
        self.epsilon = epsilon

    @traced_as_leaf
    def forward(self, x: Tensor) -> Tensor:
        """Return the pooled maps.

        Args:
            x: Floating-point maps ``(image, channel, y, x)`` or ``(channel, y, x)``.

        Raises:
            GeometryError: Another input, or a window larger than the map.
        """
        self._enter(x)
        return batched(lambda maps: ops.l2_pool(maps, self.smoothing, self.epsilon), x, 3)

    def extra_repr(self) -> str:
        """Return the arguments of the constructor as text."""
        padding = "'same'" if self.smoothing.keep else "0"
        return f"{self.smoothing.size}, padding={padding}, epsilon={self.epsilon}"


class LocalContrastNorm2d(_MapModule):
    """Local contrast normalisation: subtract the local mean, then divide by the local deviation.

    ``g = h - sum G h``, ``y = g / max(floor, sqrt(sum G g²))``. G is a Gaussian over the window and all
    channels that sums to 1.

    Args:
        window: Side of the square Gaussian window.
        padding: 0 shrinks the map by ``window - 1`` in each of the two steps; ``"same"`` keeps its size.
        floor: Least divisor, above 0.

    Raises:
        GeometryError: A window below 1, a floor of 0 or less, or an unknown padding.

    Source:
        Le et al. 2012.

    >>> import torch
    >>> LocalContrastNorm2d(5)(torch.rand(2, 8, 28, 28)).shape
    torch.Size([2, 8, 20, 20])
    """

    def __init__(self, window: int = 5, padding: Padding = 0, floor: float = 0.01) -> None:
        super().__init__()
        if not floor > 0:
            raise GeometryError(f"floor must be above 0, got {floor}")
        self.smoothing = _smoothing(window, padding)
        self.floor = floor

    @traced_as_leaf
    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised maps.

        Args:
            x: Floating-point maps ``(image, channel, y, x)`` or ``(channel, y, x)``.

        Raises:
            GeometryError: Another input, or windows larger than the map.
        """
        self._enter(x)
        return batched(lambda maps: ops.contrast_norm(maps, self.smoothing, self.floor), x, 3)

    def extra_repr(self) -> str:
        """Return the arguments of the constructor as text."""
        padding = "'same'" if self.smoothing.keep else "0"
        return f"{self.smoothing.size}, padding={padding}, floor={self.floor}"
