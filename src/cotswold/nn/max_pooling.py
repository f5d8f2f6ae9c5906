"""Max pooling for torch's networks, by our kernel where it is faster.

Knows: the layouts for which the kernel is faster. Does not know: the kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cotswold import ops
from cotswold.errors import GeometryError
from cotswold.kernels.operands import map_strides
from cotswold.nn.layer_base import as_torch, traced_as_leaf
from cotswold.ops.layers.max_pooling import Extent, PoolActivation, Windows, kernel_windows, pool_windows
from cotswold.ops.memory_format import MIN_IMAGES


class MaxPool2d(nn.MaxPool2d):
    """`torch.nn.MaxPool2d` with the same values and gradients, several times as fast on a CPU.

    The kernel of `cotswold.ops.max_pool2d` computes batches of float32 and float64 whose images are first
    (contiguous) or last in memory; the result has the same order. Torch computes all else: other dtypes,
    layouts and devices, dilation, ``ceil_mode``, ``return_indices``, and what it compiles, traces or exports.

    Args:
        kernel_size: As for `torch.nn.MaxPool2d`, as are all positional arguments and keywords but the last.
        activation: ``"relu"`` applies it to the maxima in the same pass; ``"identity"`` does not.

    Raises:
        GeometryError: An unknown activation.

    >>> MaxPool2d(2, activation="relu")(torch.full((4, 1, 2, 2), -1.0)).flatten()
    tensor([0., 0., 0., 0.])
    """

    def __init__(
        self,
        kernel_size: Extent,
        stride: Extent | None = None,
        padding: Extent = 0,
        dilation: Extent = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
        *,
        activation: PoolActivation = "identity",
    ) -> None:
        super().__init__(kernel_size, stride, padding, dilation, return_indices, ceil_mode)
        if activation not in ("identity", "relu"):
            raise GeometryError(f"activation must be 'identity' or 'relu', got {activation!r}")
        self.activation: PoolActivation = activation

    @traced_as_leaf
    def forward(self, input: Tensor) -> Any:
        """Return the maxima, or maxima and indices.

        Args:
            input: Maps ``(image, channel, y, x)`` or one map ``(channel, y, x)``.
        """
        windows = self._kernel_windows(input)
        if windows is not None:
            found = pool_windows(input, windows, self.activation == "relu")
            return found if map_strides(input) is not None else ops.images_first(found)
        found = super().forward(input)
        if self.activation == "identity":
            return found
        return (torch.relu(found[0]), found[1]) if self.return_indices else torch.relu(found)

    def _kernel_windows(self, x: Tensor) -> Windows | None:
        """Return the windows if the kernel is faster for this batch and torch would accept the arguments."""
        if self.return_indices or self.ceil_mode or self.dilation not in (1, (1, 1)):
            return None
        if not isinstance(x, Tensor) or x.dim() != 4:
            return None
        try:
            windows = kernel_windows(x, self.kernel_size, self.stride, self.padding)
        except GeometryError:
            return None
        if windows is None or map_strides(x) is not None:
            return windows
        return windows if x.is_contiguous() and x.shape[0] >= MIN_IMAGES else None

    def __prepare_scriptable__(self) -> nn.Module:
        return as_torch(self, nn.MaxPool2d if self.activation == "identity" else _MaxPoolReLU)

    def extra_repr(self) -> str:
        """Return the arguments of the constructor as text."""
        return super().extra_repr() + ("" if self.activation == "identity" else ", activation='relu'")


class _MaxPoolReLU(nn.MaxPool2d):
    """Max pooling with relu, as torch.jit.script compiles it."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the maxima that are above 0."""
        found = functional.max_pool2d(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode
        )
        return functional.relu(found)
