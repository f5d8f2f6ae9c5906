"""A network of stacks: each stack reads the output of the previous one.

Knows: that the maps of consecutive stacks must match. Does not know: how stacks are trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from cotswold.errors import GeometryError
from cotswold.nn.stack import SparseAutoencoderStack

LayerName = Literal["filters", "pooled", "output"]


class StackNetwork(nn.Module):
    """A deep autoencoder of sparse autoencoder stacks.

    Args:
        stacks: The stacks in order from the input. Each must read maps of the shape that the previous one
            writes.

    Raises:
        GeometryError: No stacks, or maps of two consecutive stacks that differ.
    """

    stacks: Sequence[SparseAutoencoderStack]

    def __init__(self, stacks: Sequence[SparseAutoencoderStack]) -> None:
        super().__init__()
        if not stacks:
            raise GeometryError("stacks must hold at least one stack, got none")
        for index in range(1, len(stacks)):
            written, read = stacks[index - 1].geometry.output, stacks[index].geometry.input
            if written != read:
                raise GeometryError(
                    f"stack {index} reads maps of {read}, but stack {index - 1} writes {written}; "
                    f"give stack {index} a geometry on maps of {written}"
                )
        self.stacks = nn.ModuleList(stacks)  # type: ignore[assignment]  # torch types elements as Module

    def forward(self, x: Tensor) -> Tensor:
        """Return the output map of the last stack, ``(image, channel, y, x)``.

        Args:
            x: Input of the first stack, ``(image, channel, y, x)`` or one image ``(channel, y, x)``.
        """
        for stack in self.stacks:
            x = stack(x)
        return x

    def forward_to(self, x: Tensor, stack_index: int, layer: LayerName) -> Tensor:
        """Return the map of one layer of one stack, ``(image, channel, y, x)``.

        Args:
            x: Input of the first stack, ``(image, channel, y, x)`` or one image ``(channel, y, x)``.
            stack_index: Index of the stack, from 0 at the input; a negative index counts from the top.
            layer: ``filters`` for the filter responses, ``pooled`` for the pooling units, or ``output``.

        Raises:
            GeometryError: An index out of range or an unknown layer.
        """
        if not -len(self.stacks) <= stack_index < len(self.stacks):
            raise GeometryError(f"stack_index {stack_index} is out of range for {len(self.stacks)} stacks")
        for below in self.stacks[:stack_index]:
            x = below(x)
        stack = self.stacks[stack_index]
        ways = {"filters": stack.responses, "pooled": stack.pooled, "output": stack.forward}
        if layer not in ways:
            raise GeometryError(f"layer must be filters, pooled or output, got {layer!r}")
        return ways[layer](x)
