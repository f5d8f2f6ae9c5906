"""Stacks on top of each other.

Knows: that each stack reads what the one below writes. Does not know: how stacks are trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from cotswold.errors import GeometryError
from cotswold.nn.stack import SparseAutoencoderStack

LayerName = Literal["filters", "pooled", "output"]


class StackNetwork(nn.Module):
    """A deep autoencoder: ``stacks`` from the input upwards.

    Raises GeometryError for no stack, or where a stack does not read the map that the one below writes.
    """

    stacks: Sequence[SparseAutoencoderStack]

    def __init__(self, stacks: Sequence[SparseAutoencoderStack]) -> None:
        super().__init__()
        if not stacks:
            raise GeometryError("a network needs at least one stack")
        for index in range(1, len(stacks)):
            written, read = stacks[index - 1].geometry.output, stacks[index].geometry.input
            if written != read:
                raise GeometryError(
                    f"stack {index} reads maps of {read}, but stack {index - 1} writes {written}; "
                    f"give stack {index} a geometry on maps of {written}"
                )
        self.stacks = nn.ModuleList(stacks)  # type: ignore[assignment]  # torch types elements as Module

    def forward(self, x: Tensor) -> Tensor:
        """The output map of the last stack."""
        for stack in self.stacks:
            x = stack(x)
        return x

    def forward_to(self, x: Tensor, stack_index: int, layer: LayerName) -> Tensor:
        """The map of one layer of one stack: its filter responses, its pooling units or its output.

        ``stack_index`` counts from 0 at the input; negative ones from the top. Raises GeometryError for a
        stack or a layer that is not there.
        """
        if not -len(self.stacks) <= stack_index < len(self.stacks):
            raise GeometryError(f"there is no stack {stack_index} in a network of {len(self.stacks)}")
        for below in self.stacks[:stack_index]:
            x = below(x)
        stack = self.stacks[stack_index]
        ways = {"filters": stack.responses, "pooled": stack.pooled, "output": stack.forward}
        if layer not in ways:
            raise GeometryError(f"a stack has the layers filters, pooled and output, not {layer!r}")
        return ways[layer](x)
