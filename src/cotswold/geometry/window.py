"""Windows along one axis: the inputs that an output reads.

Knows: size, stride and zero padding of a window, one axis at a time. Does not know: channels, blocks,
tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.errors import GeometryError


@dataclass(frozen=True)
class Window:
    """A window of ``size`` that moves by ``stride`` over an axis.

    Args:
        size: Inputs in the window, at least 1.
        stride: Distance of neighbouring windows, at least 1.
        low: Zeros before the axis, fewer than ``size``.
        high: Zeros after the axis, fewer than ``size``.

    Raises:
        GeometryError: A value out of range.

    >>> Window(5).outputs(200), Window(5, low=2, high=2).outputs(200), Window(20, stride=4).outputs(200)
    (196, 200, 46)
    """

    size: int
    stride: int = 1
    low: int = 0
    high: int = 0

    def __post_init__(self) -> None:
        if self.size < 1 or self.stride < 1:
            raise GeometryError(
                f"size and stride of a window must be at least 1, got {self.size} and {self.stride}"
            )
        if self.low < 0 or self.high < 0:
            raise GeometryError(f"padding must not be negative, got {self.low} and {self.high}")
        if max(self.low, self.high) >= self.size:
            raise GeometryError(
                f"padding of {max(self.low, self.high)} leaves windows of size {self.size} with nothing but "
                "zeros; choose less padding than the size of the window"
            )

    @classmethod
    def same(cls, size: int, stride: int = 1, *, over: int = 1) -> Window:
        """Return a window with ceil(over / stride) outputs on an axis of extent ``over``.

        The odd zero goes after the axis, as in TensorFlow and PyTorch.

        Args:
            size: Inputs in the window.
            stride: Distance of neighbouring windows.
            over: Extent of the axis; at stride 1 any value gives the same window.

        >>> Window.same(2), Window.same(5, 2, over=8)
        (Window(size=2, stride=1, low=0, high=1), Window(size=5, stride=2, low=1, high=2))
        """
        zeros = max((-(-over // stride) - 1) * stride + size - over, 0)
        return cls(size, stride, low=zeros // 2, high=zeros - zeros // 2)

    def outputs(self, extent: int) -> int:
        """Return the number of outputs on an axis of ``extent``; 0 if the window does not fit."""
        room = extent + self.low + self.high - self.size
        return 0 if room < 0 else room // self.stride + 1

    def reads(self, output: int, extent: int) -> tuple[int, int]:
        """Return the half-open range of real inputs (without padding) that one output reads.

        Args:
            output: Index of the output.
            extent: Extent of the axis.
        """
        start = output * self.stride - self.low
        return max(start, 0), min(start + self.size, extent)

    def read_by_all(self, extent: int) -> int:
        """Return the number of reads of real inputs by all outputs; an input counts once for each output.

        Args:
            extent: Extent of the axis.

        >>> Window(3, low=1, high=1).read_by_all(4)
        10
        """
        outputs = self.outputs(extent)
        # padding after the axis: of the last window all beyond the axis, of each earlier one a stride less
        beyond = (outputs - 1) * self.stride - self.low + self.size - extent
        return outputs * self.size - self._overhang(self.low, outputs) - self._overhang(beyond, outputs)

    def _overhang(self, most: int, outputs: int) -> int:
        """Return the sum of ``most``, ``most - stride``, ... while positive, of at most ``outputs`` terms."""
        count = min(outputs, max(-(-most // self.stride), 0))
        return count * most - self.stride * (count * (count - 1) // 2)

    def skipped(self, output: int, extent: int) -> tuple[int, int]:
        """Return the positions of the window in the padding, before and after the axis.

        Args:
            output: Index of the output.
            extent: Extent of the axis.
        """
        start = output * self.stride - self.low
        return max(-start, 0), max(start + self.size - extent, 0)
