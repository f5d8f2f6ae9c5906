"""Layers of a network of stacks, by name.

Knows: the maps of a stack, and how to compute several of them in one forward pass. Does not know: the use of
responses.
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
    """A map of a stack. Stacks count from 0 at the input; in names they count from 1.

    Args:
        stack: index of the stack, from 0.
        part: "filters", "pooled" or "output".

    >>> Layer.parse("2.pooled") == Layer(1, "pooled"), str(Layer(1, "pooled"))
    (True, '2.pooled')
    """

    stack: int
    part: MapName

    @classmethod
    def parse(cls, name: str) -> Layer:
        """Return the layer of a name ``<stack>.<filters|pooled|output>``.

        Args:
            name: such as "2.pooled".

        Raises:
            UserError: for any other text.
        """
        number, _, part = name.partition(".")
        for known in _PARTS:
            if part == known and number.isdigit() and int(number) >= 1:
                return cls(int(number) - 1, known)
        raise UserError(
            f"{name!r} is not a layer; write the number of a stack, from 1, and one of its maps, such as "
            "2.pooled"
        )

    def __str__(self) -> str:
        return f"{self.stack + 1}.{self.part}"


class StackLayers:
    """Computes responses of selected layers of a network of stacks, from the input upwards, in one pass.

    Calling it with images (image, channel, y, x) yields the name and the map of each layer. Images are moved
    to the device of the stacks.

    Args:
        network: the network.
        layers: the layers.

    Raises:
        UserError: if the network does not have one of the stacks.
    """

    def __init__(self, network: StackNetwork, layers: Iterable[Layer]) -> None:
        self.stacks: list[SparseAutoencoderStack] = list(network.stacks)
        self.layers = sorted(set(layers), key=lambda layer: (layer.stack, _PARTS.index(layer.part)))
        for layer in self.layers:
            if layer.stack >= len(self.stacks):
                raise UserError(f"the network has {len(self.stacks)} stacks; layer {layer} does not exist")

    def __call__(self, images: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield name and map ``(image, channel, y, x)`` of each layer."""
        x = images.to(self.stacks[0].filters.device)
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

    def first(self, images: Tensor) -> Tensor:
        """Return the map of the lowest layer only.

        Args:
            images: images (image, channel, y, x).
        """
        return next(responses for _, responses in self(images))


def top_layers(network: StackNetwork, part: MapName = "pooled") -> Sequence[Layer]:
    """Return the same map of every stack.

    Args:
        network: the network.
        part: "filters", "pooled" or "output".
    """
    return [Layer(index, part) for index in range(len(network.stacks))]
