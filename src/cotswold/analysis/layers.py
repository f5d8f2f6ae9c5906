"""The layers of a network of stacks by name.

Knows: which maps a stack makes and how to get several of them from one forward pass. Does not know: what is
done with responses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from cotswold import ops
from cotswold.errors import UserError
from cotswold.nn import SparseAutoencoderStack, StackNetwork

MapName = Literal["filters", "pooled", "output"]
_PARTS: tuple[MapName, ...] = ("filters", "pooled", "output")


@dataclass(frozen=True, order=True)
class Layer:
    """One map of one stack, counted from 0 at the input; its name counts from 1, as people do.

    >>> Layer.named("2.pooled") == Layer(1, "pooled"), str(Layer(1, "pooled"))
    (True, '2.pooled')
    """

    stack: int
    part: MapName

    @classmethod
    def named(cls, name: str) -> Layer:
        """The layer called ``<stack>.<filters|pooled|output>``; raises UserError for anything else."""
        number, _, part = name.partition(".")
        for known in _PARTS:
            if part == known and number.isdigit() and int(number) >= 1:
                return cls(int(number) - 1, known)
        raise UserError(
            f"{name!r} is no layer; write a stack from 1 upwards and one of its maps, such as 2.pooled"
        )

    def __str__(self) -> str:
        return f"{self.stack + 1}.{self.part}"


class StackLayers:
    """Responses of chosen layers of a network of stacks, from the input upwards; nothing is computed twice.

    Pictures are brought to the device of the stacks. Raises UserError for a stack that the network does not
    have.
    """

    def __init__(self, network: StackNetwork, layers: Iterable[Layer]) -> None:
        self.stacks: list[SparseAutoencoderStack] = list(network.stacks)
        self.layers = sorted(set(layers), key=lambda layer: (layer.stack, _PARTS.index(layer.part)))
        for layer in self.layers:
            if layer.stack >= len(self.stacks):
                raise UserError(f"there is no layer {layer} in a network of {len(self.stacks)} stacks")

    def __call__(self, pictures: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Name and map ``(image, channel, y, x)`` of each layer."""
        x = pictures.to(self.stacks[0].filters.device)
        top = max((layer.stack for layer in self.layers), default=-1)
        for index, stack in enumerate(self.stacks[: top + 1]):
            wanted = [layer.part for layer in self.layers if layer.stack == index]
            last = index == top
            if "filters" in wanted:
                x = stack.responses(x)
                yield str(Layer(index, "filters")), x
                if last and len(wanted) == 1:
                    return
                x = ops.l2_pool(x, stack.geometry.pool, stack.epsilon)
            elif "pooled" in wanted:
                x = stack.pooled(x)
            else:
                x = stack(x)
            if "pooled" in wanted:
                yield str(Layer(index, "pooled")), x
            if last and "output" not in wanted:
                return
            if wanted != ["output"] and wanted and stack.geometry.norm.size > 1:
                x = ops.contrast_norm(x, stack.geometry.norm)
            if "output" in wanted:
                yield str(Layer(index, "output")), x

    def first(self, pictures: Tensor) -> Tensor:
        """The map of the lowest of the layers alone."""
        return next(responses for _, responses in self(pictures))


def top_layers(network: StackNetwork, part: MapName = "pooled") -> Sequence[Layer]:
    """The same map of every stack."""
    return [Layer(index, part) for index in range(len(network.stacks))]
