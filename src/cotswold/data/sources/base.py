"""Interfaces of sources of samples and of images.

Knows: labels, classes and splits as a table. Does not know: file formats.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cotswold.data.formats.image import BrokenImageError, numbers, shallow
from cotswold.data.formats.intensity_range import Ranges
from cotswold.data.sources.file_names import Labels, Paths
from cotswold.errors import SourceError
from cotswold.phrases import counted

Kind = Literal["images", "vectors", "frames", "table"]
"""The kind of samples in a source."""


def samples_noun(kind: Kind) -> str:
    """Return the noun for samples of a kind in messages."""
    return "rows" if kind == "table" else kind


UNLABELLED = -1
"""Label of a sample without one."""


class SampleSource(ABC):
    """Samples by number, in an order determined by their names.

    Base class of `Source` and `VectorSource`. Instances must be cheap to pickle and open files late, because
    every process of a preparation has a copy.
    """

    kind: Kind
    classes: tuple[str, ...] = ()
    """Names of the classes, in the order of their labels; empty without labels."""
    targets: int = 0
    """Numbers in each regression target; 0 if labels are classes or missing."""
    lengths: NDArray[np.int64] | None = None
    """Frames in each of the consecutive sequences; None if samples are independent."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples, including broken ones."""

    def __repr__(self) -> str:
        labels = f", {counted(len(self.classes), 'class')}" if self.classes else ""
        labels = f", {counted(self.targets, 'regression target')}" if self.targets else labels
        sequences = "" if self.lengths is None else f" in {counted(len(self.lengths), 'sequence')}"
        return f"<{type(self).__name__}: {len(self):,} {self._noun}{sequences}{labels}>"

    @property
    def _noun(self) -> str:
        """The noun for samples in `repr`."""
        return self.kind

    @abstractmethod
    def name(self, index: int) -> str:
        """Return the name of a sample in messages: its path inside the source.

        Args:
            index: Number of the sample, from 0.
        """

    @abstractmethod
    def label(self, index: int) -> int:
        """Return an index into `classes`, or -1 without labels.

        Args:
            index: Number of the sample, from 0.
        """

    def labels(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        """Return the labels of several samples.

        Args:
            indices: Numbers of the samples, int64 (sample,).

        Returns:
            int64 (sample,), or regression targets, float32 (sample, target).

        Raises:
            SourceError: if a label is not an integer.
        """
        labels = [self.label(index) for index in indices.tolist()]
        for index, label in zip(indices.tolist(), labels, strict=True):
            if not isinstance(label, int | np.integer):
                raise SourceError(
                    f"{self.name(index)}: the label must be the number of a class (0 for the first name in "
                    f"classes), got {label!r:.80}"
                )
        return np.array(labels, np.int64)

    def split_of(self, index: int) -> str | None:
        """Return `train`, `validation` or `test` if the folder or file is named so, else None.

        Args:
            index: Number of the sample, from 0.
        """
        return None

    def splits_of(self, indices: NDArray[np.int64]) -> list[str | None]:
        """Return `split_of` for several samples.

        Args:
            indices: Numbers of the samples, int64 (sample,).
        """
        return [self.split_of(index) for index in indices.tolist()]

    def settle(self) -> tuple[str, ...]:
        """Make the decisions that apply to all samples, before several threads or processes read them.

        Returns notes for users, one sentence each. Raises SourceError if the samples cannot be used.
        """
        return ()

    @property
    @abstractmethod
    def identity(self) -> str:
        """A hash that changes with the samples, but not with the location of the source."""


class Source(SampleSource):
    """Images by number. Subclass it for formats that Cotswold does not read.

    A subclass implements ``__len__``, `name`, `label`, `read` and `identity`, and may implement `split_of`.
    """

    kind: Kind = "images"
    _given_ranges = Ranges()

    @abstractmethod
    def read(self, index: int) -> Image.Image:
        """Return an image of any mode and size, decoded as late as possible.

        Args:
            index: Number of the sample, from 0.

        Raises:
            BrokenImageError: if the image cannot be read; `prepare` leaves it out.
        """

    def settle(self) -> tuple[str, ...]:
        """Determine the value range of all images. Raises SourceError if no image can be used."""
        return (str(self.ranges),) if self.ranges else ()

    @cached_property
    def ranges(self) -> Ranges:
        """Value ranges of all images with more than 8 bits, from one pass over them.

        Raises SourceError if the values cannot be those of images.
        """
        return self._given_ranges.before(self._find_ranges())

    def with_ranges(self, ranges: Ranges) -> Self:
        """Return the same images with the value ranges of others.

        Kinds of numbers that are missing in ``ranges`` keep their own.
        """
        if not ranges:
            return self
        other = copy.copy(self)
        other._given_ranges = ranges.before(self._given_ranges)
        other.__dict__.pop("ranges", None)
        return other

    def _find_ranges(self) -> Ranges:
        """Return the ranges of this source's images; empty if all have 8 bits."""
        return Ranges()


def hashed(parts: Iterable[object]) -> str:
    """Return the SHA-256 of the texts of ``parts``."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(str(part).encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()


_SHALLOW = frozenset(
    [".jpg", ".jpeg", ".jpe", ".jfif", ".gif", ".bmp", ".dib", ".webp", ".ico", ".avif", ".heic", ".heif"]
)
"""Suffixes of formats with 8 bits. There may be millions of such files, so they are not opened."""
PNG_HEADER_BYTES = 26
"""Bytes of a PNG that contain its depth and colour type."""


def _is_shallow_png(begins: bytes) -> bool:
    """True for a PNG that Pillow decodes to 8 bits."""
    depth, colours = begins[24:25], begins[25:26]
    return begins.startswith(b"\x89PNG") and (depth, colours) != (b"\x10", b"\x00")


class NamedFiles(Source):
    """Images in files, with labels and splits by `Paths`."""

    def __init__(self, where: str, names: Sequence[str], labels: Labels) -> None:
        if labels == "file":
            raise SourceError(f'{where} has no label file; set labels = "folders" or "none"')
        self._names = list(names)
        self._paths = Paths(where, names, labels)
        self.classes = self._paths.classes

    def __len__(self) -> int:
        return len(self._names)

    @abstractmethod
    def open_image(self, index: int) -> Image.Image:
        """Return the image as stored in its file. Raises BrokenImageError."""

    @abstractmethod
    def first_bytes(self, index: int) -> bytes:
        """Return the first bytes of a file. Raises BrokenImageError."""

    def read(self, index: int) -> Image.Image:
        """Return the image; with more than 8 bits, it is mapped by the range of all such images."""
        return shallow(self.name(index), self.open_image(index), self.ranges)

    def _find_ranges(self) -> Ranges:
        """Find images with more than 8 bits by the first bytes of files, and decode them."""
        ranges = Ranges()
        for index, name in enumerate(self._names):
            if PurePosixPath(name).suffix.lower() in _SHALLOW:
                continue
            with contextlib.suppress(BrokenImageError):  # `read` reports it again
                if not _is_shallow_png(self.first_bytes(index)):
                    with self.open_image(index) as image:
                        deep = numbers(name, image)
                        if deep is not None:
                            ranges.add(deep[None])
        return ranges

    def name(self, index: int) -> str:
        """Return the path inside the source, with forward slashes."""
        return self._names[index]

    def settle(self) -> tuple[str, ...]:
        """Return the notes on value ranges and on the choice of class folders."""
        return (*super().settle(), *self._paths.notes)

    def label(self, index: int) -> int:
        """Return the number of the class folder."""
        return UNLABELLED if self._paths.labels is None else self._paths.labels[index]

    def split_of(self, index: int) -> str | None:
        """Return the split of the folder, or None if the folder is the label."""
        return self._paths.split_of(index)

    @cached_property
    def identity(self) -> str:
        """A hash of the paths and contents of the files."""
        return hashed(["files", *self._names, *self.contents()])

    @abstractmethod
    def contents(self) -> Sequence[object]:
        """Return a digest of each file."""
