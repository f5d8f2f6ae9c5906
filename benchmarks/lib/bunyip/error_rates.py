"""Errors of a trained cell on held-out sets: over all samples, over common characters, mean over classes.

Knows: errors by character. Does not know: how a cell was trained, the page.
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
"""Fraction of the data for which the paper gives a separate error (section 7.1)."""
PARTS: tuple[Literal["validation", "degradations", "families"], ...] = (
    "validation",
    "degradations",
    "families",
)
BANDS = ((1, 2), (3, 9), (10, 99), (100, None))
"""Bands of the number of originals of a character, from and to."""
_SHOWN = 40
"""Number of misread samples listed."""


@dataclass(frozen=True)
class Errors:
    """Misread samples of a held-out set, as fractions of 1."""

    samples: int
    error: float
    common: float
    """Error over the samples of the commonest characters, which make 40 % of the training data."""
    mean_over_classes: float
    """Error with equal weight for every character of the set."""
    rare: Mapping[str, float | None]
    """Error by the number of originals of a character; None if the set has no sample of the band."""
    misread: Sequence[tuple[int, str, str]]
    """Examples of misread samples: index, true character, predicted character."""


def judge(run: cotswold.Run, made: JapaneseSet, threads: int | None = None) -> dict[str, object]:
    """Return the errors of a run's best network (by validation) on every held-out set."""
    found: dict[str, object] = {}
    for part in PARTS:
        predicted = cotswold.predict(run, f"{made.path.absolute()}:{part}", threads=threads, progress=False)
        if predicted.skipped or predicted.classes != made.classes:
            raise SourceError(
                f"{made.path} and the network of {run.path} have different characters, or samples "
                f"were left out ({', '.join(predicted.skipped[:3]) or 'none'}); evaluate it on its own set"
            )
        read = predicted.probabilities.argmax(1).astype(np.int64)
        found[part] = asdict(errors(read, made.held_out_labels(part), made))
    return found


def errors(read: NDArray[np.int64], labels: NDArray[np.int64], made: JapaneseSet) -> Errors:
    """Return the errors of predictions ``read`` of samples with these labels."""
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
