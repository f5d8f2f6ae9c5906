"""Sentences about how many samples each class has in each split.

Knows: classes, labels. Does not know: sources, files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NAMED = 10
"""Classes that are named in a sentence, at most."""


def class_notes(classes: Sequence[str], labels: Mapping[str, NDArray[Any]]) -> list[str]:
    """The samples of each class for training, and classes that cannot be learnt or tested.

    ``labels`` are indices into ``classes``, by split.
    """
    counts = {split: np.bincount(each[each >= 0], minlength=len(classes)) for split, each in labels.items()}
    train = counts["train"]
    total = np.sum(list(counts.values()), axis=0)
    found = [_numbers(classes, train)]
    empty = [classes[number] for number in np.flatnonzero(total == 0).tolist()]
    if empty:
        found.append(f"{len(empty):,} of {len(classes):,} classes have no sample: {_some(empty)}")
    for split, each in counts.items():
        unlearnt = [classes[number] for number in np.flatnonzero((each > 0) & (train == 0)).tolist()]
        if split != "train" and unlearnt:
            found.append(
                f"{len(unlearnt):,} of {len(classes):,} classes have samples for {split} and none for "
                f"training, so that no network can learn them: {_some(unlearnt)}"
            )
        untested = [classes[number] for number in np.flatnonzero((each == 0) & (train > 0)).tolist()]
        if split == "test" and untested:
            found.append(
                f"{len(untested):,} of {len(classes):,} classes have no sample for test: {_some(untested)}"
            )
    if 2 * np.count_nonzero(total) > total.sum():
        found.append(
            f"there are {np.count_nonzero(total):,} classes for {total.sum():,} samples; labels that are "
            "numbers to predict are floating-point numbers"
        )
    return found


def _numbers(classes: Sequence[str], train: NDArray[np.int64]) -> str:
    if len(classes) <= _NAMED:
        named = ", ".join(f"{name} {count:,}" for name, count in zip(classes, train.tolist(), strict=True))
        return f"{len(classes):,} classes, with samples for training: {named}"
    return (
        f"{len(classes):,} classes ({_some(classes)}), with {train.min():,} to {train.max():,} samples for "
        "training each"
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
