"""Notes on the number of samples per class and split.

Knows: classes, labels. Does not know: sources, files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cotswold.phrases import counted

_MAX_NAMED_CLASSES = 10
"""Classes named in a message, at most."""
_MISSING = ("", "nan", "NaN", "None", "NaT", "<NA>")
"""Texts that NumPy and pandas write for a missing label."""


def class_notes(classes: Sequence[str], labels: Mapping[str, NDArray[Any]]) -> list[str]:
    """Return a note on samples per class, then warnings about classes that cannot be learnt or tested.

    ``labels`` maps each split to indices into ``classes``.
    """
    counts = {split: np.bincount(each[each >= 0], minlength=len(classes)) for split, each in labels.items()}
    train = counts["train"]
    total = np.sum(list(counts.values()), axis=0)
    found = [_numbers(classes, train)]
    for number, name in enumerate(classes):
        if name in _MISSING:
            found.append(
                f"{counted(int(total[number]), 'sample')} of the class {name!r}: this is how missing labels "
                "are written as text; remove these samples unless a class has that name"
            )
    empty = [classes[number] for number in np.flatnonzero(total == 0).tolist()]
    if empty:
        found.append(f"{_count_phrase(empty, classes)} no samples: {_name_classes(empty)}")
    for split, each in counts.items():
        unlearnt = [classes[number] for number in np.flatnonzero((each > 0) & (train == 0)).tolist()]
        if split != "train" and unlearnt:
            found.append(
                f"{_count_phrase(unlearnt, classes)} samples for {split} but none for "
                f"training, so no network can learn them: {_name_classes(unlearnt)}"
            )
        untested = [classes[number] for number in np.flatnonzero((each == 0) & (train > 0)).tolist()]
        if split == "test" and untested:
            found.append(f"{_count_phrase(untested, classes)} no samples for test: {_name_classes(untested)}")
    if 2 * np.count_nonzero(total) > total.sum():
        found.append(
            f"there are {np.count_nonzero(total):,} classes for {counted(int(total.sum()), 'sample')}; "
            "regression targets must be floating-point numbers"
        )
    return found


def _numbers(classes: Sequence[str], train: NDArray[np.int64]) -> str:
    if len(classes) <= _MAX_NAMED_CLASSES:
        named = ", ".join(
            f"{name or repr(name)} {count:,}" for name, count in zip(classes, train.tolist(), strict=True)
        )
        return f"{counted(len(classes), 'class')}, with samples for training: {named}"
    return (
        f"{len(classes):,} classes ({_name_classes(classes)}), with {train.min():,} to {train.max():,} "
        "samples for training each"
    )


def _count_phrase(some: Sequence[str], classes: Sequence[str]) -> str:
    """Return `1 of 5 classes has`."""
    return f"{len(some):,} of {counted(len(classes), 'class')} {'has' if len(some) == 1 else 'have'}"


def _name_classes(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_NAMED_CLASSES]) + (", ..." if len(names) > _MAX_NAMED_CLASSES else "")
