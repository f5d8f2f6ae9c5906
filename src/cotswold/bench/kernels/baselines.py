"""Baseline of an untied layer in PyTorch: `unfold` and `einsum`.

Knows: the layouts of the baseline. Does not know: time, JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from cotswold import ops
from cotswold.geometry import BlockLocal

Action = Callable[[], object]
LayerPasses = dict[str, Action]
"""Passes of a layer by name."""
UNFOLD, AUTOGRAD = "unfold + einsum", "PyTorch's autograd"
PRODUCTS = ("Wx", "W'x", "δx'")
FORWARD, BOTH = "forward", "forward + backward"


@dataclass(frozen=True)
class Operands:
    """Contiguous NCHW maps and responses, and filters in our layout."""

    x: Tensor
    delta: Tensor
    filters: Tensor
    layer: BlockLocal

    @classmethod
    def random(cls, layer: BlockLocal, images: int) -> Operands:
        """Normally distributed numbers for a batch."""
        x, delta = (
            torch.randn(images, shape.channels, shape.height, shape.width)
            for shape in (layer.input, layer.output)
        )
        return cls(x, delta, ops.random_filters(layer, 0, 0), layer)


def conventional_filters(filters: Tensor, layer: BlockLocal) -> Tensor:
    """Filters ``(place, channel * field_y * field_x, neuron)``, in the order of `unfold`."""
    by, bx, fy, _, neurons = filters.shape
    apart = filters.view(by * bx, fy, layer.x.size, layer.input.channels, neurons)
    return apart.permute(0, 3, 1, 2, 4).reshape(by * bx, -1, neurons).contiguous()


def by_position(responses: Tensor, layer: BlockLocal) -> Tensor:
    """Responses ``(image, depth, y, x)`` as ``(image, neuron, place)``: a block's neurons as channels."""
    (by, bx), images = layer.grid, responses.shape[0]
    apart = responses.reshape(images, layer.depth, by, layer.rows, bx, layer.columns)
    return apart.permute(0, 3, 5, 1, 2, 4).reshape(images, layer.neurons, by * bx).contiguous()


def unfolded(operands: Operands) -> LayerPasses:
    """The three products by `unfold` and `einsum`; responses are ``(image, neuron, place)``."""
    x, layer = operands.x, operands.layer
    weight = conventional_filters(operands.filters, layer)
    delta = by_position(operands.delta, layer)
    size, step = (layer.y.size, layer.x.size), (layer.y.stride, layer.x.stride)
    pads, area = (layer.y.pad_before, layer.x.pad_before), (layer.input.height, layer.input.width)
    assert pads == (layer.y.pad_after, layer.x.pad_after), "unfold pads both sides alike"

    def patches() -> Tensor:
        return functional.unfold(x, size, padding=pads, stride=step)

    def back() -> Tensor:
        columns = torch.einsum("nmp,pkm->nkp", delta, weight)
        return functional.fold(columns, area, size, padding=pads, stride=step)

    return {
        "Wx": lambda: torch.einsum("nkp,pkm->nmp", patches(), weight),
        "W'x": back,
        "δx'": lambda: torch.einsum("nmp,nkp->pkm", delta, patches()),
    }


def cotswold_passes(operands: Operands) -> LayerPasses:
    """A layer in a foreign model: contiguous NCHW in and out, including every transposition."""
    layer, delta = operands.layer, operands.delta

    def product(x: Tensor, filters: Tensor) -> Tensor:
        return ops.images_first(ops.local_product(x, filters, layer))

    return _passes(operands.x, operands.filters, delta, product, ops.images_first)


def unfolded_passes(operands: Operands) -> LayerPasses:
    """The same by `unfold`, `einsum` and PyTorch's autograd, with filters in their best order."""
    layer = operands.layer
    size, step = (layer.y.size, layer.x.size), (layer.y.stride, layer.x.stride)
    pads, shape = (layer.y.pad_before, layer.x.pad_before), operands.delta.shape
    assert pads == (layer.y.pad_after, layer.x.pad_after), "unfold pads both sides alike"
    assert layer.neurons == layer.depth, "the responses of a block lie at one place"

    def product(x: Tensor, weight: Tensor) -> Tensor:
        patches = functional.unfold(x, size, padding=pads, stride=step)
        return torch.einsum("nkp,pkm->nmp", patches, weight).reshape(shape).contiguous()

    return _passes(operands.x, conventional_filters(operands.filters, layer), operands.delta, product)


def _passes(
    x: Tensor,
    filters: Tensor,
    delta: Tensor,
    product: Callable[[Tensor, Tensor], Tensor],
    contiguous: Callable[[Tensor], Tensor] = Tensor.contiguous,
) -> LayerPasses:
    leaves = x.detach().requires_grad_(), filters.detach().requires_grad_()

    def forward() -> Tensor:
        with torch.no_grad():
            return product(x, filters)

    def both() -> tuple[Tensor, Tensor, Tensor]:
        y = product(*leaves)
        to_x, to_filters = torch.autograd.grad(y, leaves, delta)
        return y.detach(), contiguous(to_x), to_filters

    return {FORWARD: forward, BOTH: both}
