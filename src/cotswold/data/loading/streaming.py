"""Streaming of samples from a source to batches, without a store, for labelled test sets.

Knows: threads that decode ahead (Pillow and NumPy release the interpreter lock). Does not know: the use of
the batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from cotswold.data.formats.image import BrokenImageError
from cotswold.data.preprocessing import AnyTransform
from cotswold.data.preprocessing.images import Transform
from cotswold.data.preprocessing.vectors import VectorTransform
from cotswold.data.preprocessing.whitening import Float32
from cotswold.data.sources.base import SampleSource, Source
from cotswold.data.sources.checks import read_image
from cotswold.data.sources.vectors import VectorSource
from cotswold.errors import SourceError, UserError
from cotswold.host import granted_cores
from cotswold.phrases import counted

TransformResults = list[Float32 | BrokenImageError]
"""Transformed samples, or the error of each."""

_BATCHES_IN_PROGRESS = 3
"""Maximum number of batches in progress."""


def stream(
    source: Source | VectorSource,
    transform: AnyTransform,
    batch: int,
    *,
    only: Sequence[int] | None = None,
    threads: int | None = None,
) -> SampleStream:
    """Decode and transform a source on all cores, in order.

    Args:
        source: Samples from `open_source`, `open_vectors` or `open_samples`.
        transform: Transform of the store from which the network learnt.
        batch: Samples in a batch.
        only: Indices of the samples to read. [all]
        threads: Number of threads. [granted cores]

    Returns:
        An iterable of ``(samples, indices)``.

    Raises:
        UserError: if ``batch`` is below 1, or the source has another kind of data than the transform.
    """
    if batch < 1:
        raise UserError(f"batch must be at least 1, got {batch}")
    indices = range(len(source)) if only is None else only
    if isinstance(source, VectorSource) and isinstance(transform, VectorTransform):
        return SampleStream(_Vectors(source, transform), batch, indices, threads or granted_cores())
    if isinstance(source, Source) and isinstance(transform, Transform):
        return SampleStream(_Images(source, transform), batch, indices, threads or granted_cores())
    raise UserError(
        f"the network learnt from {transform.preparation.kind}, but the source contains {source.kind}"
    )


class SampleStream:
    """Iterable over ``(samples, indices)`` of a source.

    Samples are float32 (image, channel, y, x) with the image axis contiguous; indices are their positions in
    the source, int64 (image,). Broken images are left out and listed in `broken`. If no image is readable,
    SourceError is raised at the end. The last batch may be smaller. A stream can be iterated repeatedly.

    Args:
        samples: The source, with the transform of its images.
        batch: Images per batch.
        indices: Positions in the source, in the order to read.
        threads: Number of threads that decode images.
    """

    def __init__(self, samples: _TransformTask, batch: int, indices: Sequence[int], threads: int) -> None:
        self._samples, self._batch, self._indices, self._threads = samples, batch, indices, threads
        self.broken: list[str] = []
        """Broken images found in the last iteration, each with the reason."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        self.broken = []
        self._samples.source.settle()
        images: list[Float32] = []
        indices: list[int] = []
        seen = False
        with ThreadPoolExecutor(self._threads, thread_name_prefix="stream") as pool:
            for index, image in self._decoded(pool):
                if isinstance(image, BrokenImageError):
                    self.broken.append(str(image))
                    continue
                images.append(image)
                indices.append(index)
                if len(images) == self._batch:
                    yield _batched(images, indices)
                    images, indices, seen = [], [], True
        if images:
            yield _batched(images, indices)
        elif not seen:
            first = f" (the first: {self.broken[0]})" if self.broken else ""
            raise SourceError(f"none of the {len(self._indices)} images can be read{first}")

    def _decoded(self, pool: ThreadPoolExecutor) -> Iterator[tuple[int, Float32 | BrokenImageError]]:
        """Yield samples or their errors in order, with a bounded number in progress."""
        waiting: deque[tuple[Sequence[int], Future[TransformResults]]] = deque()
        together = self._samples.samples_per_task
        for start in range(0, len(self._indices), together):
            part = self._indices[start : start + together]
            waiting.append((part, pool.submit(self._samples.transform, part)))
            if len(waiting) * together > _BATCHES_IN_PROGRESS * self._batch + self._threads:
                at, future = waiting.popleft()
                yield from zip(at, future.result(), strict=True)
        for at, future in waiting:
            yield from zip(at, future.result(), strict=True)


class _TransformTask(Protocol):
    """A source and the transform of its samples."""

    @property
    def source(self) -> SampleSource:
        """The source of the samples."""

    samples_per_task: int
    """Number of samples per task."""

    def transform(self, indices: Sequence[int]) -> TransformResults:
        """Return transformed samples, or their errors."""


class _Images:
    samples_per_task = 1

    def __init__(self, source: Source, transform: Transform) -> None:
        self.source, self._transform = source.with_ranges(transform.ranges), transform

    def transform(self, indices: Sequence[int]) -> TransformResults:
        return [self._one(index) for index in indices]

    def _one(self, index: int) -> Float32 | BrokenImageError:
        try:
            pixels = self._transform.pixels(*read_image(self.source, index))
        except BrokenImageError as error:
            return error
        values: Float32 = self._transform.values(pixels[None])[0]
        return values


class _Vectors:
    samples_per_task = 64

    def __init__(self, source: VectorSource, transform: VectorTransform) -> None:
        wanted = transform.preparation
        if (source.kind, source.features) != (wanted.kind, wanted.features):
            raise UserError(
                f"the network learnt from {wanted.kind} of {counted(wanted.features, 'feature')}, but the "
                f"source contains {source.kind} of {source.features:,}"
            )
        if source.rate != wanted.rate and wanted.rate is not None:
            found = "frames that are not of recordings" if source.rate is None else f"{source.rate:,}"
            raise UserError(
                f"the network learnt from recordings of {wanted.rate:,} samples per second, but the source "
                f"has {found}; resample the recordings"
            )
        self.source, self._transform = source, transform

    def transform(self, indices: Sequence[int]) -> TransformResults:
        context = self._transform.preparation.context
        around = self.source.context_rows(np.array(indices, np.int64), context)
        needed, places = np.unique(around, return_inverse=True)
        values = self._transform.values(self.source.rows(needed))
        return list(values[places.reshape(-1)].reshape(len(indices), -1, 1, 1))


def _batched(images: list[Float32], indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    last: NDArray[np.float32] = np.ascontiguousarray(np.stack(images, axis=-1).transpose(1, 2, 0, 3))
    return torch.from_numpy(last).permute(3, 2, 0, 1), torch.tensor(indices, dtype=torch.int64)
