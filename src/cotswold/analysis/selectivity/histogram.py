"""Exact histograms of the responses of very many neurons, in two streamed passes.

Knows: the range of every neuron's responses, and the number of images of each class and group that reach each
of its thresholds. Does not know: networks, images, accuracy.

The thresholds of a neuron divide the interval from its smallest response a to its largest b evenly. A
response r reaches threshold k of T if ``(T - 1) (r - a) >= k (b - a)``, evaluated in float64. One float32
product places almost every response; responses so close to a threshold that rounding could matter are placed
by the formula itself. A response outside the range (another batch size can change its rounding) counts as the
nearer end. Responses of a neuron whose range is a single point only reach the lowest threshold.

Eight images make a 64-bit word, one byte each, so that one sum of words counts eight groups of images: 3 ns
per response on one core for 20 thresholds, compared with 8 ns for comparing floats with each threshold.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

GROUPS = 8  # bytes in a word
_PIECE = 98_304  # responses per thread at a time: its buffers stay in the second-level cache
_FULL = 255  # words whose byte lanes can be added without overflow

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Truths = NDArray[np.bool_]
Words = NDArray[np.uint64]


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


@dataclass(frozen=True)
class _Scratch:
    """Buffers of one thread, reused for all batches: allocating costs more than the work."""

    scaled: Floats
    upper: Bytes
    differ: Truths
    codes: Bytes
    transposed: Words
    levels: Words

    @classmethod
    def empty(cls, neurons: int, images: int, words: int, steps: int) -> _Scratch:
        """Return buffers for this number of neurons and images."""
        return cls(
            scaled=np.empty((neurons, images), np.float32),
            upper=np.empty((neurons, images), np.uint8),
            differ=np.empty((neurons, images), np.bool_),
            codes=np.empty((neurons, words * GROUPS), np.uint8),
            transposed=np.empty((words, neurons), np.uint64),
            levels=np.empty((steps, words, neurons), np.uint64),
        )

    def has_size(self, neurons: int, images: int, words: int) -> bool:
        """True if the buffers have this size."""
        return self.scaled.shape == (neurons, images) and len(self.transposed) == words


class Histogram:
    """Number of images of each class and group that reach each threshold of each neuron.

    Images of a class are assigned to the 8 groups in turn, so their order determines the group. Memory: 38
    words and 304 integers of 4 bytes per neuron for 20 thresholds, 152 MB for 100,000 neurons.
    """

    def __init__(
        self, least: Floats, greatest: Floats, thresholds: int = 20, threads: int | None = None
    ) -> None:
        if not 2 <= thresholds <= 256:
            raise ValueError(f"thresholds must be from 2 to 256, got {thresholds}")
        self.thresholds = thresholds
        self.images = np.zeros((2, GROUPS), np.int64)
        self._threads = threads or torch.get_num_threads()
        self._least, self._max = least, greatest
        width = greatest.astype(np.float64) - least
        scale = np.divide(thresholds - 1, width, out=np.zeros_like(width), where=width > 1e-30)
        self._scale = scale.astype(np.float32)
        self._lanes = np.zeros((2, thresholds - 1, len(least)), np.uint64)
        self._scratch: list[_Scratch] = []
        self._pending = [0, 0]
        self._counts = np.zeros((2, thresholds - 1, len(least), GROUPS), np.int32)

    def add(self, responses: Tensor, positive: bool) -> None:
        """Add responses ``(neuron, image)``, all of one class."""
        images = responses.shape[1]
        kind, first = int(positive), int(self.images[int(positive)].sum()) % GROUPS
        words = -(-(first + images) // GROUPS)
        if words > _FULL:
            half = images // 2
            self.add(responses[:, :half], positive)
            self.add(responses[:, half:], positive)
            return
        if self._pending[kind] + words > _FULL:
            self._flush(kind)
        values = responses.float().cpu().numpy()
        self._share(values, kind, first, words)
        self._pending[kind] += words
        np.add.at(self.images[kind], (first + np.arange(images)) % GROUPS, 1)

    def counts(self) -> NDArray[np.int32]:
        """Return the number of images that reach each threshold, ``(class, threshold, neuron, group)``.

        Class 1 is positive.

        The lowest threshold is omitted: every image reaches it (`images` counts them).
        """
        for kind in (0, 1):
            self._flush(kind)
        return self._counts

    def _share(self, values: Floats, kind: int, first: int, words: int) -> None:
        """Count pieces of a layer that fit into the cache, on several threads if there are several pieces."""
        images = values.shape[1]
        size = min(max(1, _PIECE // images), len(values))
        starts = range(0, len(values), size)
        threads = min(self._threads, len(starts))
        self._scratch = [one for one in self._scratch if one.has_size(size, images, words)]
        for _ in range(threads - len(self._scratch)):
            self._scratch.append(_Scratch.empty(size, images, words, self.thresholds - 1))
        shares = [
            (values, kind, first, starts[index::threads], size, self._scratch[index])
            for index in range(threads)
        ]
        if threads == 1:
            self._count(*shares[0])
            return
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda share: self._count(*share), shares))

    def _count(
        self, values: Floats, kind: int, first: int, starts: range, size: int, scratch: _Scratch
    ) -> None:
        """Add the responses of neurons from each of ``starts``, ``size`` at a time, to the lanes."""
        steps = np.arange(1, self.thresholds, dtype=np.uint8)[:, None, None]
        scratch.codes[...] = 0
        for start in starts:
            n = min(size, len(values) - start)
            part = slice(start, start + n)
            level = scratch.codes[:n, first : first + values.shape[1]]
            self._write_levels(
                values[part], part, scratch.scaled[:n], level, scratch.upper[:n], scratch.differ[:n]
            )
            np.copyto(scratch.transposed[:, :n], scratch.codes[:n].view(np.uint64).T)
            hits = scratch.levels.view(np.bool_)[:, :, : n * GROUPS]
            np.greater_equal(scratch.transposed.view(np.uint8)[:, : n * GROUPS], steps, out=hits)
            self._lanes[kind, :, part] += np.add.reduce(scratch.levels[:, :, :n], axis=1)

    def _write_levels(
        self,
        values: Floats,
        part: slice,
        scaled: Floats,
        level: Bytes,
        upper: Bytes,
        differ: Truths,
    ) -> None:
        """Write the highest threshold that each value reaches into ``level``."""
        error = np.float32(self.thresholds * 2.0**-21)  # three roundings of 2**-24 each, with a margin
        least, greatest, scale = self._least[part, None], self._max[part, None], self._scale[part, None]
        np.subtract(values, least, out=scaled)
        np.multiply(scaled, scale, out=scaled)
        np.clip(scaled, 0, self.thresholds - 1, out=scaled)
        np.add(scaled, error, out=scaled)
        np.copyto(upper, scaled, casting="unsafe")
        np.subtract(scaled, 2 * error, out=scaled)
        np.copyto(level, scaled, casting="unsafe")
        np.not_equal(upper, level, out=differ)
        row, column = np.divmod(np.flatnonzero(differ), values.shape[1])
        if row.size:
            low = least[row, 0].astype(np.float64)
            k = upper[row, column]
            level[row, column] = k - (
                (self.thresholds - 1) * (values[row, column] - low) < k * (greatest[row, 0] - low)
            )

    def _flush(self, kind: int) -> None:
        self._counts[kind] += self._lanes[kind].view(np.uint8).reshape(*self._lanes[kind].shape, GROUPS)
        self._lanes[kind] = 0
        self._pending[kind] = 0
