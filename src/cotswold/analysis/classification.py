"""How a supervised network answers labelled pictures.

Knows: confusion, example pictures. Does not know: where pictures come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cotswold.analysis.pictures import jpeg_uri, picture, signed
from cotswold.analysis.sealed import Sealed
from cotswold.errors import SourceError


@dataclass(frozen=True)
class Example:
    """A picture as the network saw it (a data URI), its class and the network's answer."""

    image: str
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
        raise SourceError(f"there is no picture to classify in {split}")
    rows = tuple(tuple(int(value) for value in row) for row in confusion)
    return Classification(step, split, tuple(classes), rows, tuple(right), tuple(wrong))
