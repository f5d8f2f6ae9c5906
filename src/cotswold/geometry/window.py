"""Windows along one axis: which inputs an output reads.

Knows: size, stride and zero padding of a window, one axis at a time. Does not know: channels, blocks,
tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.errors import GeometryError


@dataclass(frozen=True)
class Window:
    """A window of ``size`` that moves by ``stride`` over an axis, ``low`` zeros before and ``high`` after it.

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
                f"a window needs a size and a stride of at least 1, not {self.size} and {self.stride}"
            )
        if self.low < 0 or self.high < 0:
            raise GeometryError(f"padding cannot be negative: {self.low}, {self.high}")
        if max(self.low, self.high) >= self.size:
            raise GeometryError(
                f"padding of {max(self.low, self.high)} would leave windows of size {self.size} "
                "that see nothing but zeros; choose less padding than the size of the window"
            )

    @classmethod
    def same(cls, size: int, stride: int = 1, *, over: int = 1) -> Window:
        """A window with ceil(over / stride) outputs on an axis of extent ``over`` (any, at stride 1).

        The odd zero goes after the axis, as in TensorFlow and PyTorch.

        >>> Window.same(2), Window.same(5, 2, over=8)
        (Window(size=2, stride=1, low=0, high=1), Window(size=5, stride=2, low=1, high=2))
        """
        zeros = max((-(-over // stride) - 1) * stride + size - over, 0)
        return cls(size, stride, low=zeros // 2, high=zeros - zeros // 2)

    def outputs(self, extent: int) -> int:
        """How many outputs an axis of ``extent`` has; 0 where the window does not fit."""
        room = extent + self.low + self.high - self.size
        return 0 if room < 0 else room // self.stride + 1

    def reads(self, output: int, extent: int) -> tuple[int, int]:
        """The half-open range of real inputs (padding left out) that one output reads."""
        start = output * self.stride - self.low
        return max(start, 0), min(start + self.size, extent)

    def read_by_all(self, extent: int) -> int:
        """How many real inputs all outputs read together, each counted as often as it is read.

        >>> Window(3, low=1, high=1).read_by_all(4)
        10
        """
        outputs = self.outputs(extent)
        # of the last window, whatever lies beyond the axis; of those before it, a stride less each
        beyond = (outputs - 1) * self.stride - self.low + self.size - extent
        return outputs * self.size - self._overhang(self.low, outputs) - self._overhang(beyond, outputs)

    def _overhang(self, most: int, outputs: int) -> int:
        """The sum of ``most``, ``most - stride``, ... while they are positive, of at most ``outputs``."""
        count = min(outputs, max(-(-most // self.stride), 0))
        return count * most - self.stride * (count * (count - 1) // 2)

    def skipped(self, output: int, extent: int) -> tuple[int, int]:
        """How much of the window lies in the padding, before the axis and after it."""
        start = output * self.stride - self.low
        return max(-start, 0), max(start + self.size - extent, 0)
