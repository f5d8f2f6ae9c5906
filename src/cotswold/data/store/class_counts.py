"""Sentences about how many samples each class has in each split.

Knows: classes, labels. Does not know: sources, files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cotswold.words import counted

_NAMED = 10
"""Classes that are named in a sentence, at most."""
_MISSING = ("", "nan", "NaN", "None", "NaT", "<NA>")
"""What NumPy and pandas make of a missing label when it becomes a text."""


def class_notes(classes: Sequence[str], labels: Mapping[str, NDArray[Any]]) -> list[str]:
    """The samples of each class for training, and classes that cannot be learnt or tested.

    ``labels`` are indices into ``classes``, by split.
    """
    counts = {split: np.bincount(each[each >= 0], minlength=len(classes)) for split, each in labels.items()}
    train = counts["train"]
    total = np.sum(list(counts.values()), axis=0)
    found = [_numbers(classes, train)]
    for number, name in enumerate(classes):
        if name in _MISSING:
            found.append(
                f"{counted(int(total[number]), 'sample')} of the class {name!r}: this is how missing labels "
                "are written as text; leave these samples out, unless a class has that name"
            )
    empty = [classes[number] for number in np.flatnonzero(total == 0).tolist()]
    if empty:
        found.append(f"{_of(empty, classes)} no sample: {_some(empty)}")
    for split, each in counts.items():
        unlearnt = [classes[number] for number in np.flatnonzero((each > 0) & (train == 0)).tolist()]
        if split != "train" and unlearnt:
            found.append(
                f"{_of(unlearnt, classes)} samples for {split} and none for "
                f"training, so that no network can learn them: {_some(unlearnt)}"
            )
        untested = [classes[number] for number in np.flatnonzero((each == 0) & (train > 0)).tolist()]
        if split == "test" and untested:
            found.append(f"{_of(untested, classes)} no sample for test: {_some(untested)}")
    if 2 * np.count_nonzero(total) > total.sum():
        found.append(
            f"there are {np.count_nonzero(total):,} classes for {counted(int(total.sum()), 'sample')}; "
            "labels that are "
            "numbers to predict are floating-point numbers"
        )
    return found


def _numbers(classes: Sequence[str], train: NDArray[np.int64]) -> str:
    if len(classes) <= _NAMED:
        named = ", ".join(
            f"{name or repr(name)} {count:,}" for name, count in zip(classes, train.tolist(), strict=True)
        )
        return f"{counted(len(classes), 'class')}, with samples for training: {named}"
    return (
        f"{len(classes):,} classes ({_some(classes)}), with {train.min():,} to {train.max():,} samples for "
        "training each"
    )


def _of(some: Sequence[str], classes: Sequence[str]) -> str:
    """`1 of 5 classes has`."""
    return f"{len(some):,} of {counted(len(classes), 'class')} {'has' if len(some) == 1 else 'have'}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
