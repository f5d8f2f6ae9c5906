"""Test images with and without an object.

Knows: two sources, a transform, a cache for images that fit. Does not know: networks.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from PIL import Image
from torch import Tensor

from cotswold.data import SampleStream, Source, Transform, stream

_KEPT_BYTES = 256 << 20


class ObjectTestSet:
    """A test set of images with and without an object.

    Calling it starts a pass: batches of images, images last, and whether each is positive. The first pass
    decodes; later ones read from memory if the prepared images fit into `kept_bytes`, and decode again
    otherwise. Broken images are skipped; `broken` lists them after a pass.

    Args:
        positives: source of the images with the object.
        negatives: source of the images without it.
        transform: the preprocessing.
        batch: images per batch.
        device: device of the batches.
        kept_bytes: largest size of the cache in bytes.
    """

    def __init__(
        self,
        positives: Source,
        negatives: Source,
        transform: Transform,
        *,
        batch: int = 96,
        device: str | torch.device = "cpu",
        kept_bytes: int = _KEPT_BYTES,
    ) -> None:
        # both sources get the same black and white levels; otherwise neurons could use the difference
        ranges = transform.ranges.before(positives.ranges | negatives.ranges)
        self._sources = {True: positives.with_ranges(ranges), False: negatives.with_ranges(ranges)}
        self._streams: dict[bool, SampleStream] = {
            positive: stream(source, transform, batch) for positive, source in self._sources.items()
        }
        self._device = torch.device(device)
        fits = (len(positives) + len(negatives)) * transform.preparation.shape.size * 4 <= kept_bytes
        self._cached_batches: list[tuple[Tensor, Tensor]] | None = [] if fits else None
        self._places: list[tuple[bool, int]] = []
        self._is_complete = False

    @property
    def broken(self) -> list[str]:
        """Images that the last decoding pass could not read, each with the reason."""
        return [reason for one in self._streams.values() for reason in one.broken]

    def __call__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches of positives, then of negatives."""
        if self._is_complete and self._cached_batches is not None:
            yield from ((images.to(self._device), positive) for images, positive in self._cached_batches)
            return
        places: list[tuple[bool, int]] = []
        kept: list[tuple[Tensor, Tensor]] = []
        for kind, images_and_places in self._streams.items():
            for images, indices in images_and_places:
                positive = torch.full((len(images),), kind)
                places += [(kind, index) for index in indices.tolist()]
                if self._cached_batches is not None:
                    kept.append((images, positive))
                yield images.to(self._device), positive
        self._places, self._is_complete = places, True
        if self._cached_batches is not None:
            self._cached_batches = kept

    def original_of(self, image: int) -> tuple[str, Image.Image]:
        """Return name and original of an image; only after a complete pass.

        Args:
            image: index of the image in the pass.
        """
        kind, index = self._places[image]
        return self._sources[kind].name(index), self._sources[kind].read(index)
