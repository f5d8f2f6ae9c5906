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
        pad_before: Zeros before the axis, fewer than ``size``.
        pad_after: Zeros after the axis, fewer than ``size``.

    Raises:
        GeometryError: A value out of range.

    >>> Window(5).outputs(200), Window(5, pad_before=2, pad_after=2).outputs(200)
    (196, 200)
    >>> Window(20, stride=4).outputs(200)
    46
    """

    size: int
    stride: int = 1
    pad_before: int = 0
    pad_after: int = 0

    def __post_init__(self) -> None:
        if self.size < 1 or self.stride < 1:
            raise GeometryError(
                f"size and stride of a window must be at least 1, got {self.size} and {self.stride}"
            )
        if self.pad_before < 0 or self.pad_after < 0:
            raise GeometryError(f"padding must not be negative, got {self.pad_before} and {self.pad_after}")
        if max(self.pad_before, self.pad_after) >= self.size:
            raise GeometryError(
                f"padding of {max(self.pad_before, self.pad_after)} leaves windows of size {self.size} with "
                "nothing but zeros; choose less padding than the size of the window"
            )

    @classmethod
    def same_padding(cls, size: int, stride: int = 1, *, extent: int = 1) -> Window:
        """Return a window with ceil(extent / stride) outputs on an axis of extent ``extent``.

        The odd zero goes after the axis, as in TensorFlow and PyTorch.

        Args:
            size: Inputs in the window.
            stride: Distance of neighbouring windows.
            extent: Extent of the axis; at stride 1 any value gives the same window.

        >>> Window.same_padding(2)
        Window(size=2, stride=1, pad_before=0, pad_after=1)
        >>> Window.same_padding(5, 2, extent=8)
        Window(size=5, stride=2, pad_before=1, pad_after=2)
        """
        zeros = max((-(-extent // stride) - 1) * stride + size - extent, 0)
        return cls(size, stride, pad_before=zeros // 2, pad_after=zeros - zeros // 2)

    def outputs(self, extent: int) -> int:
        """Return the number of outputs on an axis of ``extent``; 0 if the window does not fit."""
        room = extent + self.pad_before + self.pad_after - self.size
        return 0 if room < 0 else room // self.stride + 1

    def reads(self, output: int, extent: int) -> tuple[int, int]:
        """Return the half-open range of real inputs (without padding) that one output reads.

        Args:
            output: Index of the output.
            extent: Extent of the axis.
        """
        start = output * self.stride - self.pad_before
        return max(start, 0), min(start + self.size, extent)

    def read_by_all(self, extent: int) -> int:
        """Return the number of reads of real inputs by all outputs; an input counts once for each output.

        Args:
            extent: Extent of the axis.

        >>> Window(3, pad_before=1, pad_after=1).read_by_all(4)
        10
        """
        outputs = self.outputs(extent)
        # padding after the axis: of the last window all beyond the axis, of each earlier one a stride less
        beyond = (outputs - 1) * self.stride - self.pad_before + self.size - extent
        return (
            outputs * self.size
            - self._overhang_sum(self.pad_before, outputs)
            - self._overhang_sum(beyond, outputs)
        )

    def _overhang_sum(self, most: int, outputs: int) -> int:
        """Return the sum of ``most``, ``most - stride``, ... while positive, of at most ``outputs`` terms."""
        count = min(outputs, max(-(-most // self.stride), 0))
        return count * most - self.stride * (count * (count - 1) // 2)

    def padding_read(self, output: int, extent: int) -> tuple[int, int]:
        """Return the positions of the window in the padding, before and after the axis.

        Args:
            output: Index of the output.
            extent: Extent of the axis.
        """
        start = output * self.stride - self.pad_before
        return max(-start, 0), max(start + self.size - extent, 0)
