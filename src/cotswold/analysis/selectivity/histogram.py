"""Exact histograms of the responses of very many neurons, in two streamed passes.

Knows: the range of every neuron's responses, and the number of images of each class and group that reach each
of its thresholds. Does not know: networks, images, accuracy.

The thresholds of a neuron divide the interval from its smallest response a to its largest b evenly. A
response r reaches threshold k of T if ``(T - 1) (r - a) >= k (b - a)``, evaluated in float64. A response
outside the range (another batch size can change its rounding) counts as the nearer end. Responses of a neuron
whose range is a single point only reach the lowest threshold. A compiled kernel counts, or NumPy without it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotswold.kernels.available import fallback_to_torch, has_cpu_kernel

GROUPS = 8
"""Groups of images of a class, filled in turn."""

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Counts = NDArray[np.int32]


class ResponseRanges:
    """The smallest and largest response of each neuron."""

    def __init__(self) -> None:
        self.images = 0
        self._least: Tensor | None = None
        self._max: Tensor | None = None

    def add(self, responses: Tensor) -> None:
        """Add responses ``(neuron, image)``."""
        least, greatest = responses.amin(1), responses.amax(1)
        if self._least is not None and self._max is not None:
            least, greatest = torch.minimum(self._least, least), torch.maximum(self._max, greatest)
        self._least, self._max = least, greatest
        self.images += responses.shape[1]

    def bounds(self) -> tuple[Floats, Floats]:
        """Return the smallest and largest responses, ``(neuron,)`` each."""
        assert self._least is not None and self._max is not None, "no response was added"
        return self._least.float().cpu().numpy(), self._max.float().cpu().numpy()

    def find_nonfinite(self) -> tuple[int, float, float] | None:
        """Return row and range of the first neuron whose range is not finite; None if all are finite."""
        least, greatest = self.bounds()
        with np.errstate(over="ignore", invalid="ignore"):
            bad = np.flatnonzero(~np.isfinite(greatest - least))
        return (int(bad[0]), float(least[bad[0]]), float(greatest[bad[0]])) if bad.size else None


class GroupAssignment:
    """Slots of images: their class and one of 8 groups.

    Every 8 consecutive images of a class go to the 8 groups in a random order. So neighbours in a source do
    not always fall into the same two groups, and the kernel rarely adds to one count twice in a row.
    """

    def __init__(self, seed: int = 0) -> None:
        self.images = np.zeros((2, GROUPS), np.int64)
        """Number of images assigned so far, ``(class, group)``; class 1 is positive."""
        self._random = np.random.default_rng(seed)
        self._next = [np.empty(0, np.int64)] * 2

    def assign(self, positive: Tensor) -> Counts:
        """Return a slot for each image of a batch: 8 times its class plus its group."""
        kinds = positive.numpy().astype(np.int32)
        slots = kinds * GROUPS
        for kind in (0, 1):
            chosen = np.flatnonzero(kinds == kind)
            more = -(-(len(chosen) - len(self._next[kind])) // GROUPS)
            orders = self._random.permuted(np.tile(np.arange(GROUPS), (max(0, more), 1)), axis=1)
            groups = np.concatenate([self._next[kind], orders.ravel()])
            groups, self._next[kind] = groups[: len(chosen)], groups[len(chosen) :]
            slots[chosen] += groups.astype(np.int32)
            np.add.at(self.images[kind], groups, 1)
        return slots


class Histogram:
    """Number of images of each class and group that reach each threshold of each neuron.

    Memory: 336 integers of 4 bytes per neuron for 20 thresholds, 134 MB for 100,000 neurons.
    """

    def __init__(
        self, least: Floats, greatest: Floats, thresholds: int = 20, threads: int | None = None
    ) -> None:
        if not 2 <= thresholds <= 256:
            raise ValueError(f"thresholds must be from 2 to 256, got {thresholds}")
        self.thresholds = thresholds
        self._threads = threads or torch.get_num_threads()
        self._least = least.astype(np.float64)
        width = greatest - self._least
        self._widths = np.where(width > 1e-30, width, np.inf)
        # (neuron, level, slot): level is the highest threshold that a response reaches
        self._levels = np.zeros((len(least), thresholds + 1, 2 * GROUPS), np.int32)

    def add(self, responses: Tensor, slots: Counts) -> None:
        """Add responses ``(neuron, image)`` of images with these slots."""
        values = responses.float().cpu()
        if values.numel():
            values = values if values.stride(1) == 1 else values.contiguous()
            _count(values, self._least, self._widths, slots, self._levels, self._threads)

    def counts(self) -> Counts:
        """Return the number of images that reach each threshold, ``(class, threshold, neuron, group)``.

        Class 1 is positive. The lowest threshold is omitted: every image reaches it.
        """
        neurons = len(self._levels)
        levels = self._levels[:, 1 : self.thresholds].reshape(neurons, -1, 2, GROUPS).transpose(2, 1, 0, 3)
        return np.ascontiguousarray(np.cumsum(levels[:, ::-1], axis=1, dtype=np.int32)[:, ::-1])


@fallback_to_torch
def _count(
    values: Tensor, least: Doubles, widths: Doubles, slots: Counts, levels: Counts, threads: int
) -> None:
    """Add 1 for every response to the count of the highest threshold that it reaches."""
    responses = values.numpy()
    if has_cpu_kernel(values):
        from cotswold.kernels import histogram

        histogram.count_levels(responses, least, widths, slots, levels, threads)
        return
    steps = levels.shape[1] - 2
    for neuron, row in enumerate(responses):
        reached = steps * (row - least[neuron])[None] >= np.arange(1, steps + 1)[:, None] * widths[neuron]
        np.add.at(levels[neuron], (reached.sum(0), slots), 1)
