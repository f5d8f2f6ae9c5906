"""A k-means dictionary in the place of learnt filters, as a rival to them.

Knows: spherical k-means (Coates and Ng 2012), block by block, in mini-batches. Does not know: what the
dictionary is compared by.

Each block has a dictionary of its own, of as many entries as the block has neurons. A patch counts for the
entry that it correlates with most, of either sign, and adds its direction to it. Entries start as patches,
and sums are kept, so that a step grows smaller as an entry grows (MacQueen's rule). The same products as in
training do all the work: memory is the dictionary, one mini-batch's sums of the same size, and a few maps.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable

import torch
from torch import Tensor

from cotswold import ops
from cotswold.errors import SourceError
from cotswold.geometry import BlockLocal
from cotswold.nn import SparseAutoencoderStack, StackNetwork


def kmeans_network(
    network: StackNetwork, pictures: Iterable[Tensor], *, batches: int = 2000, seconds: float = 300.0
) -> StackNetwork:
    """The same network (lower stacks shared) with a k-means dictionary as the filters of its last stack.

    Reads at most ``batches`` batches of pictures and begins none after ``seconds``. Raises SourceError where
    there is no picture.
    """
    stacks: list[SparseAutoencoderStack] = list(network.stacks)
    top = copy.deepcopy(stacks[-1])
    layer = top.geometry.filters
    dictionary = _Dictionary(layer, torch.zeros_like(top.filters))
    end = time.monotonic() + seconds
    with torch.no_grad():
        for number, batch in enumerate(pictures):
            if number >= batches or time.monotonic() > end:
                break
            x = batch
            for stack in stacks[:-1]:
                x = stack(x)
            dictionary.add(ops.images_last(x))
        top.filters.copy_(dictionary.entries())
    return StackNetwork([*stacks[:-1], top]).eval()


class _Dictionary:
    """Sums of the directions that count for each entry, laid out as filters, an entry a neuron."""

    def __init__(self, layer: BlockLocal, sums: Tensor) -> None:
        self._layer, self._sums = layer, sums
        self._one = BlockLocal(layer.input, layer.y, layer.x, 1, 1, 1)
        self._ones = sums.new_ones(self._one.filters_shape)
        self._seeded = 0

    def entries(self) -> Tensor:
        """The entries, of norm 1."""
        if not self._seeded:
            raise SourceError("a k-means dictionary needs pictures; there were none")
        norms = ops.filter_norms(self._sums)
        return self._sums / norms.clamp_min(1e-30)[:, :, None, None, :]

    def add(self, x: Tensor) -> None:
        """Take in input maps, images last: the first as entries, later ones for those they resemble."""
        energy = ops.local_product(x.square(), self._ones, self._one)[:, 0]
        length = energy.clamp_min(1e-30).sqrt()[:, :, None, :, None, None]
        images, neurons = x.shape[0], self._layer.neurons
        if self._seeded < neurons:
            chosen = torch.zeros(images, 1, 1, neurons, device=x.device, dtype=x.dtype)
            count = min(images, neurons - self._seeded)
            chosen[torch.arange(count), 0, 0, torch.arange(self._seeded, self._seeded + count)] = 1
            self._seeded += count
            weight = chosen.expand(-1, *self._layer.grid, -1)
            weight = self._spread(weight) / length
        else:
            norms = ops.filter_norms(self._sums).clamp_min(1e-30)
            responses = ops.local_product(x, self._sums, self._layer)
            weight = self._winners(responses, norms) / length.square()
        delta = weight.permute(0, 5, 1, 2, 3, 4).reshape(images, *self._shape())
        self._sums += ops.local_outer(ops.images_last(delta), x, self._layer)

    def _shape(self) -> tuple[int, int, int]:
        shape = self._layer.output
        return shape.channels, shape.height, shape.width

    def _winners(self, responses: Tensor, norms: Tensor) -> Tensor:
        """Responses ``(image, block_y, row, block_x, column, depth)``, all but the block's strongest 0."""
        layer = self._layer
        gy, gx = layer.grid
        apart = responses.reshape(len(responses), layer.depth, gy, layer.rows, gx, layer.columns)
        apart = apart.permute(0, 2, 4, 3, 5, 1).reshape(len(responses), gy, gx, layer.neurons) / norms
        best = apart.abs().argmax(3, keepdim=True)
        won = torch.zeros_like(apart).scatter_(3, best, apart.gather(3, best))
        return self._spread(won)

    def _spread(self, values: Tensor) -> Tensor:
        """``(image, block_y, block_x, neuron)`` as ``(image, block_y, row, block_x, column, depth)``."""
        layer = self._layer
        each = values.reshape(len(values), *layer.grid, layer.rows, layer.columns, layer.depth)
        return each.permute(0, 1, 3, 2, 4, 5)
