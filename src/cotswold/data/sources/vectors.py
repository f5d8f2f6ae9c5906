"""Vectors and frames by number, from arrays that are opened late.

Knows: arrays in sequence, rows, sequences, infinite and NaN values. Does not know: file formats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from cotswold.data.sources.base import UNLABELLED, Kind, SampleSource
from cotswold.data.sources.labels import LabelArray, number_remedy
from cotswold.data.sources.sequences import Integers, neighbours
from cotswold.errors import SourceError
from cotswold.phrases import counted

Rows = NDArray[np.float64]

_MAX_OPEN_ARRAYS = 16
"""Arrays that a process keeps open. Each uses a memory mapping; a process may have about 65,000 of them."""
_BLOCK_BYTES = 16 << 20
_EXACT_BYTES, _EXACT_MAX = 4, 1 << 53
"""Integers of more bytes and greater than this may not be exact in float64."""


class RowAccess(Protocol):
    """Rows by number: an array, or an object that computes rows on access."""

    def __getitem__(self, indices: Integers, /) -> NDArray[Any]:
        """Return rows (row, feature)."""


@dataclass(frozen=True)
class VectorArray:
    """Rows of one array.

    Args:
        name: Name of the array.
        shape: (row, feature).
        split: Split that the name denotes, or None.
        load: Returns the rows, (row, feature), of any numeric dtype; called when a row is first read.
        where: Name in messages, beginning with the file. [name]
    """

    name: str
    shape: tuple[int, int]
    split: str | None
    load: Callable[[], RowAccess]
    """Return (row, feature) of any numeric dtype; called when a row is first read."""
    where: str = ""
    """Name in messages, beginning with the file; `name` if empty."""


class VectorSource(SampleSource):
    """Vectors or frames from several arrays in sequence; each process loads an array when it first needs it.

    Args:
        parts: The arrays; all must have equally many features.
        identity: A hash of the contents, or a function that computes it.
        labelling: Labels of all rows; None without labels.
        lengths: Frames in each sequence, if rows are frames; an array begins with a new sequence.

    Raises:
        SourceError: if the numbers of features differ.
    """

    def __init__(
        self,
        parts: Sequence[VectorArray],
        identity: str | Callable[[], str],
        labelling: LabelArray | None = None,
        lengths: Sequence[int] | None = None,
    ) -> None:
        self._parts, self._identity = list(parts), identity
        self.kind: Kind = "vectors" if lengths is None else "frames"
        self.lengths = None if lengths is None else np.array(lengths, np.int64)
        features = {part.shape[1] for part in parts}
        if len(features) > 1:
            first = parts[0]
            other = next(part for part in parts if part.shape[1] != first.shape[1])
            raise SourceError(
                f"{first.where or first.name} has {first.shape[1]:,} features and "
                f"{other.where or other.name} {other.shape[1]:,}; give arrays with equally many columns, or "
                "select some with include"
            )
        self.rate: int | None = None
        """Samples per second of the recordings that the frames were made of; None for other frames."""
        self.features = features.pop()
        """Numbers in one row."""
        self._ends = np.cumsum([part.shape[0] for part in parts])
        self._labels = None if labelling is None else labelling.labels
        if labelling is not None:
            self.classes, self.targets = labelling.classes, labelling.targets
        self._loaded: dict[int, RowAccess] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": {}}

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def _noun(self) -> str:
        return f"{self.kind} of {counted(self.features, 'feature')}"

    def name(self, index: int) -> str:
        """Return the name of the array and the row in it."""
        part = int(np.searchsorted(self._ends, index, side="right"))
        return f"{self._parts[part].name}[{index - self._start(part)}]"

    def _where(self, index: int) -> str:
        """Return the name of a row, including the file."""
        part = int(np.searchsorted(self._ends, index, side="right"))
        return f"{self._parts[part].where or self._parts[part].name}[{index - self._start(part)}]"

    def rows(self, indices: Integers) -> Rows:
        """Return several rows.

        Args:
            indices: Numbers of the rows, int64 (row,).

        Returns:
            float64 (row, feature).

        Raises:
            SourceError: if a value is infinite or NaN, or an integer is not exact in float64.
        """
        found = np.empty((len(indices), self.features))
        parts = np.searchsorted(self._ends, indices, side="right")
        for part in np.unique(parts).tolist():
            places = np.flatnonzero(parts == part)
            offsets = indices[places] - self._start(part)
            order = np.argsort(offsets)  # sequential access to the file
            rows = self._array(part)[offsets[order]]
            found[places[order]] = rows
            if rows.dtype.kind in "iu" and rows.dtype.itemsize > _EXACT_BYTES:
                self._check_exact(rows, indices[places[order]])
        self._check_finite(found, indices)
        return found

    def _check_finite(self, found: Rows, indices: Integers) -> None:
        """Raise SourceError for an infinite or NaN value."""
        wrong = ~np.isfinite(found)
        if wrong.any():
            row, feature = np.argwhere(wrong)[0]
            raise SourceError(
                f"{self._where(int(indices[row]))}: feature {feature} is {found[row, feature]}; numbers must "
                "be finite: remove or correct the row"
            )

    def _check_exact(self, rows: NDArray[Any], indices: Integers) -> None:
        """Raise SourceError for an integer that is not exact in float64."""
        with np.errstate(over="ignore", invalid="ignore"):  # 2^64 - 1 rounds to 2^64, beyond its type
            back = rows.astype(np.float64)
            lost = (np.abs(back) > _EXACT_MAX) & (back.astype(rows.dtype) != rows)
        if lost.any():
            row, feature = np.argwhere(lost)[0]
            raise SourceError(
                f"{self._where(int(indices[row]))}: feature {feature} is {rows[row, feature]}, but integers "
                "beyond 2^53 lose their last digits in float64: subtract a common offset first, or "
                "save the array as float64 if these digits do not matter"
            )

    def context_rows(self, indices: Integers, context: int) -> Integers:
        """Return the rows of each sample with its context: (sample, row).

        Args:
            indices: Numbers of the samples, int64 (sample,).
            context: Frames on each side.
        """
        return indices[:, None] if self.lengths is None else neighbours(indices, self.lengths, context)

    def label(self, index: int) -> int:
        """Return the number of the class, or -1."""
        return int(self._labels[index]) if self._labels is not None and self.classes else UNLABELLED

    def labels(self, indices: Integers) -> NDArray[Any]:
        """Return the labels of several rows."""
        return np.full(len(indices), UNLABELLED) if self._labels is None else self._labels[indices]

    def split_of(self, index: int) -> str | None:
        """Return the split named by the file or array."""
        return self._parts[int(np.searchsorted(self._ends, index, side="right"))].split

    def splits_of(self, indices: Integers) -> list[str | None]:
        """Return `split_of` for several rows."""
        names = [part.split for part in self._parts]
        return [names[part] for part in np.searchsorted(self._ends, indices, side="right").tolist()]

    def settle(self) -> tuple[str, ...]:
        """Read all numbers, so that an infinite or NaN value is found before writing. Raises SourceError."""
        for start, stop in self._blocks():
            self.rows(np.arange(start, stop))
        labels = (
            f"labels are floats: {counted(self.targets, 'regression target')} for each sample"
            if self.targets
            else ""
        )
        return (labels,) if labels else ()

    @cached_property
    def identity(self) -> str:
        """A hash of the contents of the files and of the selected arrays."""
        return self._identity if isinstance(self._identity, str) else self._identity()

    def _blocks(self) -> Iterator[tuple[int, int]]:
        """Yield (start, stop) of blocks of a few MiB."""
        rows = max(1, _BLOCK_BYTES // (8 * self.features))
        return ((start, min(start + rows, len(self))) for start in range(0, len(self), rows))

    def _start(self, part: int) -> int:
        return int(self._ends[part]) - self._parts[part].shape[0]

    def _array(self, part: int) -> RowAccess:
        found = self._loaded.get(part)
        if found is None:
            found = self._parts[part].load()
            while len(self._loaded) >= _MAX_OPEN_ARRAYS:
                self._loaded.pop(next(iter(self._loaded)), None)
            self._loaded[part] = found
        return found


def sequences_remedy(shape: tuple[int, ...]) -> str:
    """Return the remedy for an array (n, time, channels)."""
    return (
        "for n sequences (n, time, channels) save frames with their lengths: numpy.savez(path, "
        f"frames=x.reshape(-1, {shape[2]}), lengths=numpy.full({shape[0]}, {shape[1]})); or vectors: "
        f"x.reshape({shape[0]}, -1)"
    )


def checked_shape(
    name: str, shape: tuple[int, ...], dtype: np.dtype[Any], what: Literal["vectors", "frames"]
) -> tuple[int, int]:
    """Return the shape of an array of vectors. Raises SourceError with a remedy for other arrays."""
    if dtype.hasobject:
        raise SourceError(
            f"{name} contains Python objects, which are not read because they may run code; save numbers"
        )
    if dtype.kind not in "buif" or dtype.itemsize > 8:
        raise SourceError(
            f"{name} has dtype {dtype}; {what} are integers or floats of at most 64 "
            f"bits{number_remedy(dtype)}"
        )
    if len(shape) != 2:
        remedy = "; reshape it to (n, 1)" if len(shape) == 1 else ""
        if len(shape) == 3:
            remedy = f"; {sequences_remedy(shape)}"
        raise SourceError(f"{name} has shape {shape}; {what} are (n, features){remedy}")
    if 0 in shape:
        raise SourceError(f"{name} has shape {shape}, so it contains no {what}; give a non-empty array")
    return shape[0], shape[1]
