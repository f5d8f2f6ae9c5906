"""Samples of a source straight to batches, without a store: for labelled test sets.

Knows: threads that decode ahead (Pillow and NumPy release the interpreter while they work). Does not know:
what the batches are for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from cotswold.data.formats.image import BrokenPictureError
from cotswold.data.preprocessing import AnyTransform
from cotswold.data.preprocessing.images import Transform
from cotswold.data.preprocessing.vectors import VectorTransform
from cotswold.data.preprocessing.whitening import Float32
from cotswold.data.sources.base import SampleSource, Source
from cotswold.data.sources.checks import picture_of
from cotswold.data.sources.vectors import VectorSource
from cotswold.errors import SourceError, UserError
from cotswold.host import granted_cores
from cotswold.words import counted

Found = list[Float32 | BrokenPictureError]
"""Samples as a network wants them, or what is wrong with each."""

_AHEAD = 3
"""Batches under way at most."""


def stream(
    source: Source | VectorSource,
    transform: AnyTransform,
    batch: int,
    *,
    only: Sequence[int] | None = None,
    threads: int | None = None,
) -> SampleStream:
    """Decode and transform a source (or the samples ``only`` of it) on all cores, in its order. Raises
    UserError where it holds other data than those that the transform was made from."""
    if batch < 1:
        raise UserError(f"a batch of {batch} samples is none; give 1 or more")
    indices = range(len(source)) if only is None else only
    if isinstance(source, VectorSource) and isinstance(transform, VectorTransform):
        return SampleStream(_Vectors(source, transform), batch, indices, threads or granted_cores())
    if isinstance(source, Source) and isinstance(transform, Transform):
        return SampleStream(_Pictures(source, transform), batch, indices, threads or granted_cores())
    raise UserError(f"the network learnt from {transform.preparation.kind}; the source holds {source.kind}")


class SampleStream:
    """Iterates over ``(samples, indices)``: float32 (image, channel, y, x) with the image contiguous, and
    where each sample is in the source: int64 (image,).

    Broken pictures are left out, and named in `broken` once the iteration has passed them; SourceError at the
    end if there was nothing else. The last batch may be smaller. A stream can be iterated again.
    """

    def __init__(self, samples: _Transformed, batch: int, indices: Sequence[int], threads: int) -> None:
        self._samples, self._batch, self._indices, self._threads = samples, batch, indices, threads
        self.broken: list[str] = []
        """Broken pictures met by the last iteration, each with the reason."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        self.broken = []
        self._samples.source.settle()
        pictures: list[Float32] = []
        indices: list[int] = []
        seen = False
        with ThreadPoolExecutor(self._threads, thread_name_prefix="stream") as pool:
            for index, picture in self._decoded(pool):
                if isinstance(picture, BrokenPictureError):
                    self.broken.append(str(picture))
                    continue
                pictures.append(picture)
                indices.append(index)
                if len(pictures) == self._batch:
                    yield _batched(pictures, indices)
                    pictures, indices, seen = [], [], True
        if pictures:
            yield _batched(pictures, indices)
        elif not seen:
            first = f" (the first: {self.broken[0]})" if self.broken else ""
            raise SourceError(f"not one of the {len(self._indices)} pictures can be read{first}")

    def _decoded(self, pool: ThreadPoolExecutor) -> Iterator[tuple[int, Float32 | BrokenPictureError]]:
        """Pictures or what is wrong with them, in order, a bounded number under way."""
        waiting: deque[tuple[Sequence[int], Future[Found]]] = deque()
        together = self._samples.together
        for start in range(0, len(self._indices), together):
            part = self._indices[start : start + together]
            waiting.append((part, pool.submit(self._samples.some, part)))
            if len(waiting) * together > _AHEAD * self._batch + self._threads:
                at, future = waiting.popleft()
                yield from zip(at, future.result(), strict=True)
        for at, future in waiting:
            yield from zip(at, future.result(), strict=True)


class _Transformed(Protocol):
    """A source and the transform of its samples."""

    @property
    def source(self) -> SampleSource:
        """Where they come from."""

    together: int
    """Samples that are worth a task of their own."""

    def some(self, indices: Sequence[int]) -> Found:
        """Samples as the network wants them, or what is wrong with them."""


class _Pictures:
    together = 1

    def __init__(self, source: Source, transform: Transform) -> None:
        self.source, self._transform = source.levelled(transform.ranges), transform

    def some(self, indices: Sequence[int]) -> Found:
        return [self._one(index) for index in indices]

    def _one(self, index: int) -> Float32 | BrokenPictureError:
        try:
            pixels = self._transform.pixels(*picture_of(self.source, index))
        except BrokenPictureError as error:
            return error
        values: Float32 = self._transform.values(pixels[None])[0]
        return values


class _Vectors:
    together = 64

    def __init__(self, source: VectorSource, transform: VectorTransform) -> None:
        wanted = transform.preparation
        if (source.kind, source.features) != (wanted.kind, wanted.features):
            raise UserError(
                f"the network learnt from {wanted.kind} of {counted(wanted.features, 'feature')}; the "
                f"source holds {source.kind} of {source.features:,}"
            )
        self.source, self._transform = source, transform

    def some(self, indices: Sequence[int]) -> Found:
        context = self._transform.preparation.context
        around = self.source.around(np.array(indices, np.int64), context)
        needed, places = np.unique(around, return_inverse=True)
        values = self._transform.values(self.source.rows(needed))
        return list(values[places.reshape(-1)].reshape(len(indices), -1, 1, 1))


def _batched(pictures: list[Float32], indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    last: NDArray[np.float32] = np.ascontiguousarray(np.stack(pictures, axis=-1).transpose(1, 2, 0, 3))
    return torch.from_numpy(last).permute(3, 2, 0, 1), torch.tensor(indices, dtype=torch.int64)
