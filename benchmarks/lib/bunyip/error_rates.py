"""Errors of a trained cell on the held-out parts: over all, on common characters, a mean over classes.

Knows: what is wrong how often, for which characters. Does not know: how a cell was trained, the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

import cotswold
from cotswold.bench.measure import rounded
from cotswold.data.datasets.japanese_ocr import JapaneseSet
from cotswold.errors import SourceError

COMMON = 0.4
"""The share of the data on which the paper gives its error apart (section 7.1)."""
PARTS: tuple[Literal["validation", "degradations", "families"], ...] = (
    "validation",
    "degradations",
    "families",
)
BANDS = ((1, 2), (3, 9), (10, 99), (100, None))
"""Originals of a character, from and to."""
_SHOWN = 40
"""Misread samples that are named."""


@dataclass(frozen=True)
class Errors:
    """What of a part's samples was read wrongly, in shares of 1."""

    samples: int
    error: float
    common: float
    """Over the samples of the commonest characters, which make 40 % of the training data."""
    mean_over_classes: float
    """Every character weighs the same, of those that the part has."""
    rare: Mapping[str, float | None]
    """By how many originals a character has; None where the part has no sample of such."""
    misread: Sequence[tuple[int, str, str]]
    """Some that were wrong: which sample, what it is, what it was read as."""


def judge(run: cotswold.Run, made: JapaneseSet, threads: int | None = None) -> dict[str, object]:
    """The errors of a run's best network, by its validation, on every held-out part of a set."""
    found: dict[str, object] = {}
    for part in PARTS:
        predicted = cotswold.predict(run, f"{made.path.absolute()}:{part}", threads=threads, progress=False)
        if predicted.skipped or predicted.classes != made.classes:
            raise SourceError(
                f"{made.path} and what {run.path} has learnt do not have the same characters, or samples "
                f"were left out ({', '.join(predicted.skipped[:3]) or 'none'}); judge its own set"
            )
        read = predicted.probabilities.argmax(1).astype(np.int64)
        found[part] = asdict(errors(read, made.held_out_labels(part), made))
    return found


def errors(read: NDArray[np.int64], labels: NDArray[np.int64], made: JapaneseSet) -> Errors:
    """The errors where a part with these classes was read as those."""
    wrong = read != labels
    originals, names = made.frequencies, made.classes
    common = np.isin(labels, made.most_frequent(COMMON))
    count = np.bincount(labels, minlength=len(names))
    each = np.bincount(labels, weights=wrong, minlength=len(names))[count > 0] / count[count > 0]
    rare: dict[str, float | None] = {}
    for low, high in BANDS:
        chosen = (originals[labels] >= low) & (originals[labels] <= (high or originals.max()))
        rare[f"{low} to {high}" if high else f"{low} and more"] = _share(wrong[chosen])
    some = np.flatnonzero(wrong)[:: max(1, int(wrong.sum()) // _SHOWN)][:_SHOWN]
    return Errors(
        len(labels),
        rounded(float(wrong.mean())),
        _share(wrong[common]) or 0.0,
        rounded(float(each.mean())),
        rare,
        [(int(one), names[labels[one]], names[read[one]]) for one in some],
    )


def _share(wrong: NDArray[np.bool_]) -> float | None:
    return rounded(float(wrong.mean())) if len(wrong) else None
