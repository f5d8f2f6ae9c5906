"""A set of Japanese print as a source of vectors: `folder`, `folder:611200`, `folder:families`.

Knows: the text after the colon, splits. Does not know: the making of samples, stores.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cotswold.data.datasets.japanese_ocr import MANIFEST
from cotswold.data.sources.base import hashed
from cotswold.data.sources.file_names import Labels
from cotswold.data.sources.labels import LabelArray
from cotswold.data.sources.vectors import RowAccess, VectorArray, VectorSource
from cotswold.errors import SourceError
from cotswold.files import expanded

_FEATURES = 400
_TRAIN, _VALIDATION, _TEST = "train", "validation", "degradations"
_HELD_OUT = (_VALIDATION, _TEST, "families")


def is_set(text: str) -> bool:
    """True if a source's name is that of a set of Japanese print, with or without a suffix after a colon."""
    return bool(text) and (folder_of(text) / MANIFEST).is_file()


def folder_of(text: str) -> Path:
    """Return the folder of a set, without the suffix."""
    return _split(text)[0]


def open_set(text: str, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels) -> VectorSource:
    """Open a set; a sample is ink from 0 to 1, (sample, 400), generated on access.

    The source contains the training samples (the number in the name, else that of the set), `validation`, and
    the scans with unseen degradations as test. The name of a part after the colon selects that part alone.
    """
    from cotswold.data.datasets.japanese_ocr.japanese_set import JapaneseSet

    folder, what = _split(text)
    if include or exclude:
        raise SourceError(f"{text} has no names; include and exclude do not apply to it")
    if labels == "folders":
        raise SourceError(f'{text} has no folders to take labels from; set labels = "file" or "none"')
    found = JapaneseSet(folder)
    if what in _HELD_OUT:
        parts = [_Part(folder, what, None)]
    else:
        count = _parse_count(text, what) or found.request.samples
        parts = [_Part(folder, _TRAIN, count), *(_Part(folder, part, None) for part in (_VALIDATION, _TEST))]
    known = [each.labels(found) for each in parts]
    arrays = [
        VectorArray(each.part, (len(these), _FEATURES), each.split(len(parts)), partial(_open_part, each))
        for each, these in zip(parts, known, strict=True)
    ]
    identity = hashed(["japanese-ocr", found.identity, *(f"{each.part} {each.count}" for each in parts)])
    labelling = LabelArray(np.concatenate(known), found.classes) if labels == "file" else None
    return GeneratedSource(arrays, identity, labelling)


class GeneratedSource(VectorSource):
    """Samples that are generated on access; all values are finite."""

    def settle(self) -> tuple[str, ...]:
        """Return no notes; nothing is generated here."""
        return ()


@dataclass(frozen=True)
class _Part:
    """A part of a set, or its first ``count`` training samples."""

    folder: Path
    part: str
    count: int | None

    def split(self, parts: int) -> str | None:
        """Return the split of the part; None if the part is opened alone."""
        if parts == 1:
            return None
        return {_TRAIN: "train", _VALIDATION: "validation"}.get(self.part, "test")

    def labels(self, found: Any) -> NDArray[np.int64]:
        """Return the classes (sample,) of the part."""
        if self.count is not None:
            return cast(NDArray[np.int64], found.labels(np.arange(self.count)))
        return cast(NDArray[np.int64], found.held_out_labels(self.part))


class _Ink:
    """Rows of a part by number, float32 (row, 400)."""

    def __init__(self, part: _Part) -> None:
        from cotswold.data.datasets.japanese_ocr.japanese_set import JapaneseSet

        self._set = JapaneseSet(part.folder)
        self._held = None if part.count is not None else self._set.held_out(cast(Any, part.part))[0]

    def __getitem__(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        grey = self._set.samples(indices) if self._held is None else self._held[indices]
        return grey.astype(np.float32) / np.float32(255)


def _open_part(part: _Part) -> RowAccess:
    return _Ink(part)


def _split(text: str) -> tuple[Path, str]:
    """Return the folder and the text after the colon; a set whose folder name contains a colon is kept
    whole.
    """
    folder, colon, what = text.rpartition(":")
    if not colon or not folder or (expanded(text) / MANIFEST).is_file():
        return expanded(text), ""
    return expanded(folder), what


def _parse_count(text: str, what: str) -> int:
    """Return the number after the colon; 0 if missing."""
    if what and not (what.isascii() and what.isdigit() and 0 < int(what) <= 1 << 40):
        raise SourceError(
            f"{text}: {what!r} is neither a number of training samples nor one of {', '.join(_HELD_OUT)}"
        )
    return int(what or 0)
