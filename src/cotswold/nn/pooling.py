"""Pooling and contrast normalisation as modules.

Knows: their windows. Does not know: what lies below or above them.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from cotswold import ops
from cotswold.errors import GeometryError
from cotswold.geometry import Smoothing
from cotswold.nn._checks import batched, check_floating, check_tensor, refuse_onnx, traced_as_leaf, whole

Padding = Literal[0, "same"]


def _smoothing(size: int, padding: Padding) -> Smoothing:
    if padding not in (0, "same"):
        raise GeometryError(f"padding of a window over a map is 0 or 'same', not {padding!r}")
    number = whole(size)
    if number is None or number < 1:
        raise GeometryError(f"a window over a map needs a size of at least 1, not {size!r}")
    return Smoothing(number, keep=padding == "same")


class _OverMaps(nn.Module):
    """A window over maps ``(image, channel, y, x)``; a single map ``(channel, y, x)`` is taken too."""

    smoothing: Smoothing

    def _enter(self, x: Tensor) -> None:
        refuse_onnx(self)
        check_tensor(self, x)
        check_floating(self, x)
        if x.dim() not in (3, 4):
            raise GeometryError(
                f"{type(self).__name__} takes maps (image, channel, y, x) or (channel, y, x), "
                f"not {x.dim()} dimensions"
            )


class L2Pool2d(_OverMaps):
    """The root of epsilon plus the sum of squares over a window of each map, at stride 1.

    Coates et al. 2013, section 3: weights 1, a small epsilon inside the root. ``padding="same"`` keeps the
    map's size; with 0 it shrinks by ``kernel_size - 1``.

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
        """The pooled maps; raises GeometryError where the window does not fit."""
        self._enter(x)
        return batched(lambda maps: ops.l2_pool(maps, self.smoothing, self.epsilon), x, 3)

    def extra_repr(self) -> str:
        """The arguments of the constructor."""
        padding = "'same'" if self.smoothing.keep else "0"
        return f"{self.smoothing.size}, padding={padding}, epsilon={self.epsilon}"


class LocalContrastNorm2d(_OverMaps):
    """Subtracts the local mean and divides by the local deviation, over a Gaussian window and all maps.

    Le et al. 2012: ``g = h - sum G h``, ``y = g / max(floor, sqrt(sum G g²))``, where G sums to 1 over window
    and maps. Either step shrinks the map by ``window - 1``, or keeps it with ``padding="same"``.

    >>> import torch
    >>> LocalContrastNorm2d(5)(torch.rand(2, 8, 28, 28)).shape
    torch.Size([2, 8, 20, 20])
    """

    def __init__(self, window: int = 5, padding: Padding = 0, floor: float = 0.01) -> None:
        super().__init__()
        if not floor > 0:
            raise GeometryError(f"the floor of contrast normalisation must be above 0, not {floor}")
        self.smoothing = _smoothing(window, padding)
        self.floor = floor

    @traced_as_leaf
    def forward(self, x: Tensor) -> Tensor:
        """The normalised maps; raises GeometryError where the window does not fit."""
        self._enter(x)
        return batched(lambda maps: ops.contrast_norm(maps, self.smoothing, self.floor), x, 3)

    def extra_repr(self) -> str:
        """The arguments of the constructor."""
        padding = "'same'" if self.smoothing.keep else "0"
        return f"{self.smoothing.size}, padding={padding}, floor={self.floor}"
