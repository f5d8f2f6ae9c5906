"""A k-means dictionary in place of learnt filters, as a baseline.

Knows: spherical k-means (Coates and Ng 2012), per block, in mini-batches. Does not know: how the dictionary
is evaluated.

Each block has its own dictionary, with one entry per neuron. A patch is assigned to the most similar entry,
of either sign, and adds its direction to it. Entries start as patches. In the first pass each mini-batch
updates the entries, and sums are kept, so that steps become smaller as an entry grows (MacQueen's rule). In
every later pass the entries stay fixed while the sums of all patches are computed, and then become these sums
(Lloyd's algorithm). Passes continue until the similarity of patches and entries stops growing; the criterion
does not depend on time. The same products as in training do all the work. Memory: the dictionary twice, one
mini-batch's sums of the same size, and a few maps.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from cotswold import ops
from cotswold.analysis.selectivity.results import Clustering
from cotswold.errors import SourceError
from cotswold.geometry import BlockLocal
from cotswold.nn import SparseAutoencoderStack, StackNetwork

PASSES_MAX = 30
"""Default of the largest number of passes."""
_GAIN = 1e-3
"""Convergence: a pass raises the mean similarity of patches and entries by less than this fraction."""


def kmeans_network(
    network: StackNetwork,
    images: Callable[[], Iterable[Tensor]],
    *,
    passes_max: int = PASSES_MAX,
    progress: Callable[[int], None] | None = None,
) -> tuple[StackNetwork, Clustering]:
    """Return a network with a k-means dictionary as the filters of its last stack.

    Args:
        network: the network; the result shares its lower stacks.
        images: starts a pass over images in batches (image, channel, y, x); every pass must give the same
            images.
        passes_max: largest number of passes.
        progress: called with the number of images done, over all passes.

    Returns:
        The network, and how the clustering ended.

    Raises:
        SourceError: if there are no images.
    """
    stacks: list[SparseAutoencoderStack] = list(network.stacks)
    top = copy.deepcopy(stacks[-1])
    dictionary = _Dictionary(top.geometry.filters, torch.zeros_like(top.filters))
    seen = number = 0
    before, settled = 0.0, False
    while number < passes_max and not settled:
        count, likeness = 0, 0.0
        with torch.no_grad():
            for batch in images():
                x = batch
                for stack in stacks[:-1]:
                    x = stack(x)
                likeness += dictionary.add(ops.images_last(x))
                count += len(batch)
                if progress is not None:
                    progress(seen + count)
            dictionary.end_pass()
        number, seen = number + 1, seen + count
        # entries changed during the first pass, so its similarity cannot be compared
        settled = number > 2 and likeness - before < _GAIN * likeness
        before = likeness
    with torch.no_grad():
        top.filters.copy_(dictionary.entries)
    found = StackNetwork([*stacks[:-1], top]).eval()
    return found, Clustering(number, seen // max(1, number), settled)


class _Dictionary:
    """Sums of the patches assigned to each entry, laid out as filters, one entry per neuron."""

    def __init__(self, layer: BlockLocal, sums: Tensor) -> None:
        self._layer, self._sums = layer, sums
        self._compared = sums  # in the first pass the growing sums themselves
        self._one = BlockLocal(layer.input, layer.y, layer.x, 1, 1, 1)
        self._ones = sums.new_ones(self._one.filters_shape)
        self._seeded = 0

    @property
    def entries(self) -> Tensor:
        """Entries, of norm 1."""
        return self._compared

    def end_pass(self) -> None:
        """Turn the sums into entries; an entry without patches stays. Raises SourceError without images."""
        if not self._seeded:
            raise SourceError("a k-means dictionary needs at least one image, got none")
        norms = ops.filter_norms(self._sums)
        self._compared = self._sums / norms.clamp_min(1e-30)[:, :, None, None, :]
        self._sums = self._compared.clone()

    def add(self, x: Tensor) -> float:
        """Add input maps, images last: the first ones become entries, later ones join the most similar entry.

        Returns the summed similarity of patches and their entries (the cosine of their angle).
        """
        energy = ops.local_product(x.square(), self._ones, self._one)[:, 0]
        length = energy.clamp_min(1e-30).sqrt()[:, :, None, :, None, None]
        images, neurons = x.shape[0], self._layer.neurons
        likeness = 0.0
        if self._seeded < neurons:
            chosen = torch.zeros(images, 1, 1, neurons, device=x.device, dtype=x.dtype)
            count = min(images, neurons - self._seeded)
            chosen[torch.arange(count), 0, 0, torch.arange(self._seeded, self._seeded + count)] = 1
            self._seeded += count
            weight = self._spread(chosen.expand(-1, *self._layer.grid, -1)) / length
        else:
            norms = ops.filter_norms(self._compared).clamp_min(1e-30)
            won = self._winners(ops.local_product(x, self._compared, self._layer), norms)
            likeness = float((won.abs() / length).sum(dtype=torch.float64))
            weight = won / length.square()
        delta = weight.permute(0, 5, 1, 2, 3, 4).reshape(images, *self._shape())
        self._sums += ops.local_outer(ops.images_last(delta), x, self._layer)
        return likeness

    def _shape(self) -> tuple[int, int, int]:
        shape = self._layer.output
        return shape.channels, shape.height, shape.width

    def _winners(self, responses: Tensor, norms: Tensor) -> Tensor:
        """Keep each block's strongest response, in ``(image, block_y, row, block_x, column, depth)``."""
        layer = self._layer
        gy, gx = layer.grid
        apart = responses.reshape(len(responses), layer.depth, gy, layer.rows, gx, layer.columns)
        apart = apart.permute(0, 2, 4, 3, 5, 1).reshape(len(responses), gy, gx, layer.neurons) / norms
        best = apart.abs().argmax(3, keepdim=True)
        won = torch.zeros_like(apart).scatter_(3, best, apart.gather(3, best))
        return self._spread(won)

    def _spread(self, values: Tensor) -> Tensor:
        """Reshape ``(image, block_y, block_x, neuron)`` to maps with block rows and columns."""
        layer = self._layer
        each = values.reshape(len(values), *layer.grid, layer.rows, layer.columns, layer.depth)
        return each.permute(0, 1, 3, 2, 4, 5)
