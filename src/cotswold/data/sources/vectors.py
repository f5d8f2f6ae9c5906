"""Vectors and frames by number, out of arrays that are opened late.

Knows: parts (arrays) one after another, rows, sequences, numbers that are not finite. Does not know: formats
of files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from cotswold.data.sources.base import UNLABELLED, Kind, SampleSource
from cotswold.data.sources.labels import Labelling, number_remedy
from cotswold.data.sources.sequences import Integers, neighbours
from cotswold.errors import SourceError
from cotswold.words import counted

Rows = NDArray[np.float64]

_KEPT = 16
"""Arrays that a process keeps open. Each takes a mapping, of which a process may have some 65,000."""
_BLOCK_BYTES = 16 << 20
_EXACT_BYTES, _EXACT_MAX = 4, 1 << 53
"""Whole numbers of more bytes, and beyond this, may not be float64 exactly."""


class ByNumber(Protocol):
    """Rows that are had by their numbers: an array, or what makes them when they are asked for."""

    def __getitem__(self, indices: Integers, /) -> NDArray[Any]:
        """Rows (row, feature)."""


@dataclass(frozen=True)
class VectorArray:
    """Rows that lie in one array."""

    name: str
    shape: tuple[int, int]
    split: str | None
    load: Callable[[], ByNumber]
    """Returns (row, feature), any numbers; called when a row of it is read."""
    where: str = ""
    """What messages call it, its file first; `name` where nothing is said."""


class VectorSource(SampleSource):
    """Parts, one after the other; every process loads a part for itself when it needs it.

    ``lengths``: frames in each sequence where rows are frames; a part begins with a sequence. ``what`` names
    the rows in messages.
    """

    def __init__(
        self,
        parts: Sequence[VectorArray],
        identity: str | Callable[[], str],
        labelling: Labelling | None = None,
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
                f"{other.where or other.name} {other.shape[1]:,}; give arrays with as many columns, or "
                "choose by include"
            )
        self.features = features.pop()
        """Numbers in one row."""
        self._ends = np.cumsum([part.shape[0] for part in parts])
        self._labels = None if labelling is None else labelling.labels
        if labelling is not None:
            self.classes, self.targets = labelling.classes, labelling.targets
        self._loaded: dict[int, ByNumber] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": {}}

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def _what(self) -> str:
        return f"{self.kind} of {counted(self.features, 'feature')}"

    def name(self, index: int) -> str:
        """The part and the row inside it."""
        part = int(np.searchsorted(self._ends, index, side="right"))
        return f"{self._parts[part].name}[{index - self._start(part)}]"

    def _where(self, index: int) -> str:
        """The same, with the file."""
        part = int(np.searchsorted(self._ends, index, side="right"))
        return f"{self._parts[part].where or self._parts[part].name}[{index - self._start(part)}]"

    def rows(self, indices: Integers) -> Rows:
        """Rows of any numbers as float64 (row, feature). Raises SourceError naming one that is not finite."""
        found = np.empty((len(indices), self.features))
        parts = np.searchsorted(self._ends, indices, side="right")
        for part in np.unique(parts).tolist():
            places = np.flatnonzero(parts == part)
            offsets = indices[places] - self._start(part)
            order = np.argsort(offsets)  # a file is read from its beginning to its end
            rows = self._array(part)[offsets[order]]
            found[places[order]] = rows
            if rows.dtype.kind in "iu" and rows.dtype.itemsize > _EXACT_BYTES:
                self._check_exact(rows, indices[places[order]])
        wrong = ~np.isfinite(found)
        if wrong.any():
            row, feature = np.argwhere(wrong)[0]
            raise SourceError(
                f"{self._where(int(indices[row]))}: feature {feature} is {found[row, feature]}; numbers must "
                "be finite: remove the row or mend it"
            )
        return found

    def _check_exact(self, rows: NDArray[Any], indices: Integers) -> None:
        """Raise SourceError for a whole number that float64 cannot hold: its last digits would be lost."""
        with np.errstate(over="ignore", invalid="ignore"):  # 2^64 - 1 rounds to 2^64, beyond its type
            back = rows.astype(np.float64)
            lost = (np.abs(back) > _EXACT_MAX) & (back.astype(rows.dtype) != rows)
        if lost.any():
            row, feature = np.argwhere(lost)[0]
            raise SourceError(
                f"{self._where(int(indices[row]))}: feature {feature} is {rows[row, feature]}, and whole "
                "numbers beyond 2^53 lose their last digits in float64: subtract a common offset first, or "
                "save the array as float64 if these digits mean nothing"
            )

    def around(self, indices: Integers, context: int) -> Integers:
        """Which rows make each sample with ``context`` frames on each side: (sample, row)."""
        return indices[:, None] if self.lengths is None else neighbours(indices, self.lengths, context)

    def label(self, index: int) -> int:
        """The number of its class."""
        return int(self._labels[index]) if self._labels is not None and self.classes else UNLABELLED

    def labels(self, indices: Integers) -> NDArray[Any]:
        """As of every source, at once."""
        return np.full(len(indices), UNLABELLED) if self._labels is None else self._labels[indices]

    def split_of(self, index: int) -> str | None:
        """What the file or array is called."""
        return self._parts[int(np.searchsorted(self._ends, index, side="right"))].split

    def splits_of(self, indices: Integers) -> list[str | None]:
        """As of every source, at once."""
        names = [part.split for part in self._parts]
        return [names[part] for part in np.searchsorted(self._ends, indices, side="right").tolist()]

    def settle(self) -> tuple[str, ...]:
        """Look at all numbers, so that nothing is written where one is not finite. Raises SourceError."""
        for start, stop in self._blocks():
            self.rows(np.arange(start, stop))
        labels = (
            f"labels are floats: {counted(self.targets, 'number to predict')} for each sample"
            if self.targets
            else ""
        )
        return (labels,) if labels else ()

    @cached_property
    def identity(self) -> str:
        """A hash over the contents of the files, and over the arrays that are read."""
        return self._identity if isinstance(self._identity, str) else self._identity()

    def _blocks(self) -> Iterator[tuple[int, int]]:
        """All rows, a few MiB at a time."""
        rows = max(1, _BLOCK_BYTES // (8 * self.features))
        return ((start, min(start + rows, len(self))) for start in range(0, len(self), rows))

    def _start(self, part: int) -> int:
        return int(self._ends[part]) - self._parts[part].shape[0]

    def _array(self, part: int) -> ByNumber:
        found = self._loaded.get(part)
        if found is None:
            found = self._parts[part].load()
            while len(self._loaded) >= _KEPT:
                self._loaded.pop(next(iter(self._loaded)), None)
            self._loaded[part] = found
        return found


def sequences_remedy(shape: tuple[int, ...]) -> str:
    """How an array (n, time, channels) can be given."""
    return (
        "for n sequences (n, time, channels) save frames with their lengths: numpy.savez(path, "
        f"frames=x.reshape(-1, {shape[2]}), lengths=numpy.full({shape[0]}, {shape[1]})); or vectors: "
        f"x.reshape({shape[0]}, -1)"
    )


def checked_shape(
    name: str, shape: tuple[int, ...], dtype: np.dtype[Any], what: Literal["vectors", "frames"]
) -> tuple[int, int]:
    """The shape of an array that can be vectors; raises SourceError with the remedy for all others."""
    if dtype.hasobject:
        raise SourceError(
            f"{name} holds Python objects, which are not read since they may be programs; save it as numbers"
        )
    if dtype.kind not in "buif" or dtype.itemsize > 8:
        raise SourceError(
            f"{name} is of type {dtype}; {what} are integers or floats of 64 bits at "
            f"most{number_remedy(dtype)}"
        )
    if len(shape) != 2:
        remedy = "; reshape it to (n, 1)" if len(shape) == 1 else ""
        if len(shape) == 3:
            remedy = f"; {sequences_remedy(shape)}"
        raise SourceError(f"{name} has shape {shape}; {what} are (n, features){remedy}")
    if 0 in shape:
        raise SourceError(f"{name} has shape {shape}: no {what} in it; give an array that has some")
    return shape[0], shape[1]
