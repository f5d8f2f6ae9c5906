"""How a supervised network answers labelled pictures.

Knows: confusion, example pictures. Does not know: where pictures come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cotswold.analysis.images import jpeg_uri, picture, signed
from cotswold.analysis.results_file import Sealed
from cotswold.analysis.tables import html_table
from cotswold.errors import SourceError


@dataclass(frozen=True)
class Example:
    """A picture as the network saw it (a data URI), its class and the network's answer."""

    image: str = field(repr=False)
    truth: str
    answer: str


@dataclass(frozen=True)
class Classification:
    """``confusion[true class][answer]`` counts the pictures of a split."""

    step: int
    split: str
    classes: tuple[str, ...]
    confusion: tuple[tuple[int, ...], ...]
    right: tuple[Example, ...] = ()
    wrong: tuple[Example, ...] = ()

    @property
    def pictures(self) -> int:
        """How many were classified."""
        return sum(sum(row) for row in self.confusion)

    @property
    def accuracy(self) -> float:
        """The part that is right."""
        return sum(row[label] for label, row in enumerate(self.confusion)) / max(1, self.pictures)

    @property
    def mistakes(self) -> list[tuple[int, str, str]]:
        """How often a class (the second) was taken for another (the third), the most frequent first."""
        found = [
            (count, self.classes[truth], self.classes[answer])
            for truth, row in enumerate(self.confusion)
            for answer, count in enumerate(row)
            if count and truth != answer
        ]
        return sorted(found, key=lambda each: (-each[0], each[1:]))

    def __repr__(self) -> str:
        said = (
            f"Classification of step {self.step}: {self.accuracy:.2%} of {self.pictures:,} samples of "
            f"{self.split} are right, {len(self.classes)} classes"
        )
        mistakes = (f"  {truth} taken for {answer}: {count:,}" for count, truth, answer in self.mistakes[:3])
        return "\n".join([said, *mistakes])

    def _repr_html_(self) -> str:
        caption = f"{self.accuracy:.2%} of {self.pictures:,} samples of {self.split} are right"
        if len(self.classes) > _CLASSES_SHOWN:
            rows = [[truth, answer, f"{count:,}"] for count, truth, answer in self.mistakes[:_CLASSES_SHOWN]]
            return html_table(f"{caption}; the most frequent mistakes", ["class", "answer", "samples"], rows)
        rows = [
            [name, *(f"{count:,}" for count in row)]
            for name, row in zip(self.classes, self.confusion, strict=True)
        ]
        return html_table(caption, ["class ↓, answer →", *self.classes], rows)

    def to_json(self) -> str:
        """Text that `from_json` reads."""
        return CLASSIFICATION.to_json(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Classification:
        """The inverse of `to_json`; raises RunError for text that is something else, or damaged."""
        return CLASSIFICATION.from_json(text)

    @classmethod
    def read(cls, path: Path) -> Classification | None:
        """The classification in a file; None where there is no file, RunError where it is damaged."""
        return CLASSIFICATION.read(path)

    def write(self, path: Path) -> None:
        """Have a file hold it, whole or not at all."""
        CLASSIFICATION.write(path, self)


_CLASSES_SHOWN = 12
CLASSIFICATION = Sealed(Classification, "classification")


def classify(
    network: Callable[[Tensor], Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    classes: Sequence[str],
    *,
    step: int,
    split: str,
    examples: int = 8,
) -> Classification:
    """The answers (greatest output) to batches of pictures and labels; SourceError where there are none."""
    confusion = np.zeros((len(classes), len(classes)), np.int64)
    right: list[Example] = []
    wrong: list[Example] = []
    for pictures, labels in batches:
        with torch.no_grad():
            answers = network(pictures).argmax(1).cpu()
        np.add.at(confusion, (labels.cpu().numpy(), answers.numpy()), 1)
        for index, (truth, answer) in enumerate(zip(labels.tolist(), answers.tolist(), strict=True)):
            kept = right if truth == answer else wrong
            if len(kept) < examples:
                shown = picture(signed(pictures[index].float().cpu().numpy()))
                kept.append(Example(jpeg_uri(shown), classes[truth], classes[answer]))
    if not confusion.any():
        raise SourceError(f"there is no sample to classify in {split}")
    rows = tuple(tuple(int(value) for value in row) for row in confusion)
    return Classification(step, split, tuple(classes), rows, tuple(right), tuple(wrong))
