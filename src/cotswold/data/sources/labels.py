"""Labels stored as arrays: classes by number or by name, or regression targets.

Knows: dtypes of arrays and their meaning. Does not know: files, the labelled samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cotswold.data.sources.file_names import composed
from cotswold.errors import SourceError

_NUMBER_MAX = (1 << 16) - 1
"""Integers from 0 to this value are class numbers; others are class names."""


@dataclass(frozen=True)
class LabelArray:
    """Labels of samples.

    Args:
        labels: int64 (sample,), indices into ``classes``; without classes, float32 (sample, target).
        classes: Names of the classes; empty for regression targets.
    """

    labels: NDArray[Any]
    classes: tuple[str, ...] = ()

    @property
    def targets(self) -> int:
        """Numbers in each regression target; 0 for classes."""
        return 0 if self.classes else int(self.labels.shape[1])


def number_remedy(dtype: np.dtype[Any]) -> str:
    """Return the end of an error message: how to convert dates, texts or tables to numbers."""
    if dtype.kind == "M":
        return "; save dates as numbers, such as (dates - dates.min()) / numpy.timedelta64(1, 'D')"
    if dtype.kind == "m":
        return "; save spans of time as numbers, such as spans / numpy.timedelta64(1, 'D')"
    if dtype.kind in "US":
        return "; save texts as numbers, such as a column of 0 and 1 for each word"
    return "; save its columns side by side as one array (n, features)" if dtype.names else ""


def checked_labels(name: str, labels: NDArray[Any], samples: int, what: str) -> NDArray[Any]:
    """Return validated labels of ``samples`` samples; ``what`` names the samples in messages.

    Raises SourceError with a remedy.
    """
    if labels.dtype.kind not in "biufUS" or labels.dtype.itemsize > 1 << 16:
        raise SourceError(
            f"{name} contains labels of dtype {labels.dtype}; labels are integers or texts (classes) or "
            f"floats (regression targets){number_remedy(labels.dtype)}"
        )
    if labels.dtype.kind == "f" and labels.ndim == 1:
        labels = labels[:, None]
    if labels.dtype.kind != "f" and labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != (2 if labels.dtype.kind == "f" else 1):
        raise SourceError(
            f"{name} has labels of shape {labels.shape}; give one for each sample: (n,) for classes, (n, k) "
            "floats for regression targets"
        )
    if len(labels) != samples:
        raise SourceError(
            f"{name} has {len(labels):,} labels for {samples:,} {what}; give one label for each"
        )
    if labels.dtype.kind == "f":
        if not labels.shape[1]:
            raise SourceError(f"{name} contains labels of shape {labels.shape}, without any numbers")
        with np.errstate(over="ignore"):
            single = labels.astype(np.float32)
        wrong = np.flatnonzero(~np.isfinite(single).all(1))
        if len(wrong):
            raise SourceError(f"{name}[{wrong[0]}] is an infinite or NaN label; remove or correct the sample")
        return single
    return labels


def joined_labels(parts: Sequence[tuple[str, NDArray[Any]]]) -> LabelArray:
    """Concatenate the labels of several parts, each with its name and `checked_labels`.

    Floats are regression targets. Integers from 0 to 65,535 are class numbers; texts and other integers are
    class names, in sorted order. Texts are compared in Unicode's composed form. Raises SourceError for parts
    of different kinds, and for a single negative number among class numbers.
    """
    kinds = {
        "f" if labels.dtype.kind == "f" else "U" if labels.dtype.kind in "US" else "i" for _, labels in parts
    }
    if len(kinds) > 1:
        named = ", ".join(f"{name} ({labels.dtype})" for name, labels in parts[:5])
        raise SourceError(f"labels have different kinds: {named}; give all as numbers or all as texts")
    if kinds == {"f"}:
        widths = {labels.shape[1] for _, labels in parts}
        if len(widths) > 1:
            raise SourceError(
                f"labels have {' and '.join(map(str, sorted(widths)))} numbers; give each the same count"
            )
        return LabelArray(np.concatenate([labels for _, labels in parts]))
    whole = np.concatenate([_normalise_dtype(name, labels) for name, labels in parts])
    if kinds == {"i"} and int(whole.min()) >= 0 and int(whole.max()) <= _NUMBER_MAX:
        return LabelArray(
            whole.astype(np.int64), tuple(str(number) for number in range(int(whole.max()) + 1))
        )
    if kinds == {"i"}:
        _refuse_marks(parts)
    names, numbers = np.unique(whole, return_inverse=True)
    return LabelArray(numbers.astype(np.int64), tuple(str(name) for name in names.tolist()))


def _refuse_marks(parts: Sequence[tuple[str, NDArray[Any]]]) -> None:
    """Raise SourceError if a single negative number occurs among two or more class numbers.

    It usually marks samples without a label, and would become a class.
    """
    values = np.unique(np.concatenate([labels.astype(np.int64) for _, labels in parts]))
    negative, classes = values[values < 0], values[values >= 0]
    if len(negative) != 1 or len(classes) < 2:
        return
    mark = int(negative[0])
    places = [(name, int(at)) for name, labels in parts for at in np.flatnonzero(labels == mark)]
    raise SourceError(
        f"{places[0][0]}[{places[0][1]}] has label {mark}, but the others are class numbers from "
        f"{classes[0]} to {classes[-1]}; {len(places):,} samples have {mark}: remove them if they have no "
        f"label, or save the labels as texts (labels.astype(str)) if {mark} is a class"
    )


def _normalise_dtype(name: str, labels: NDArray[Any]) -> NDArray[Any]:
    """Return texts as str and integers as int64."""
    if labels.dtype.kind == "S":
        try:
            labels = np.char.decode(labels, "utf-8")
        except UnicodeDecodeError as error:
            raise SourceError(
                f"{name} contains labels that are not UTF-8 ({error}); save them as texts"
            ) from error
    if labels.dtype.kind == "U":
        return np.array([composed(label) for label in labels.tolist()], str)
    if labels.dtype.kind == "u" and labels.size and int(labels.max()) > np.iinfo(np.int64).max:
        raise SourceError(f"{name} has a label of {labels.max()}; number the classes from 0")
    return labels.astype(np.int64)
