"""Classification of labelled samples by a supervised network.

Knows: confusion, example images. Does not know: where samples come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cotswold.analysis.images import jpeg_uri, signed, to_image
from cotswold.analysis.results_file import ResultsFile, html_table, metric_lines, metric_table
from cotswold.errors import SourceError


@dataclass(frozen=True)
class Example:
    """An image as the network sees it (a data URI), its class and the prediction."""

    image: str = field(repr=False)
    truth: str
    predicted: str


@dataclass(frozen=True)
class Classification:
    """Confusion of a supervised network on a split.

    Attributes:
        step: step of the evaluated checkpoint.
        split: name of the split, or of the source.
        classes: names of the classes.
        confusion: ``confusion[true class][predicted class]`` counts samples.
        correct_examples: examples that were classified correctly.
        wrong_examples: examples that were misclassified.
        metrics: further metrics by name, with the accuracy; None if a metric has no value.
    """

    step: int
    split: str
    classes: tuple[str, ...]
    confusion: tuple[tuple[int, ...], ...]
    correct_examples: tuple[Example, ...] = ()
    wrong_examples: tuple[Example, ...] = ()
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    """Metrics by name, with the accuracy; None if a metric has no value."""

    @property
    def samples(self) -> int:
        """Number of classified samples."""
        return sum(sum(row) for row in self.confusion)

    @property
    def accuracy(self) -> float:
        """Fraction of samples classified correctly."""
        return sum(row[label] for label, row in enumerate(self.confusion)) / max(1, self.samples)

    @property
    def mistakes(self) -> list[tuple[int, str, str]]:
        """Misclassifications as (count, true class, predicted class), the most frequent first."""
        found = [
            (count, self.classes[truth], self.classes[answer])
            for truth, row in enumerate(self.confusion)
            for answer, count in enumerate(row)
            if count and truth != answer
        ]
        return sorted(found, key=lambda each: (-each[0], each[1:]))

    def __repr__(self) -> str:
        said = (
            f"Classification of step {self.step}: {self.accuracy:.2%} of {self.samples:,} samples of "
            f"{self.split} are correct, {len(self.classes)} classes"
        )
        mistakes = (
            f"  {truth} predicted as {answer}: {count:,}" for count, truth, answer in self.mistakes[:3]
        )
        return "\n".join([said, *mistakes, *metric_lines(self.metrics, "accuracy")])

    def _repr_html_(self) -> str:
        caption = f"{self.accuracy:.2%} of {self.samples:,} samples of {self.split} are correct"
        if len(self.classes) > _CLASSES_SHOWN:
            rows = [[truth, answer, f"{count:,}"] for count, truth, answer in self.mistakes[:_CLASSES_SHOWN]]
            heads = ["class", "predicted", "samples"]
            table = html_table(f"{caption}; the most frequent mistakes", heads, rows)
            return table + metric_table(self.metrics, "accuracy")
        rows = [
            [name, *(f"{count:,}" for count in row)]
            for name, row in zip(self.classes, self.confusion, strict=True)
        ]
        table = html_table(caption, ["class ↓, predicted →", *self.classes], rows)
        return table + metric_table(self.metrics, "accuracy")

    def to_json(self) -> str:
        """Return JSON text for `from_json`."""
        return CLASSIFICATION.to_json(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Classification:
        """Return the classification in JSON text.

        Args:
            text: the result of `to_json`.

        Raises:
            RunError: for any other or damaged text.
        """
        return CLASSIFICATION.from_json(text)

    @classmethod
    def read(cls, path: Path) -> Classification | None:
        """Return the classification in a file; None if the file does not exist.

        Args:
            path: a file written by `write`.

        Raises:
            RunError: if the file is damaged.
        """
        return CLASSIFICATION.read(path)

    def write(self, path: Path) -> None:
        """Write a file atomically.

        Args:
            path: the file; an existing one is replaced.
        """
        CLASSIFICATION.write(path, self)


_CLASSES_SHOWN = 12
CLASSIFICATION = ResultsFile(Classification, "classification")


def classify(
    network: Callable[[Tensor], Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    classes: Sequence[str],
    *,
    step: int,
    split: str,
    examples: int = 8,
) -> Classification:
    """Classify batches of samples, and count the confusion.

    Args:
        network: maps samples to outputs (sample, class); the largest output is the prediction.
        batches: pairs of images (sample, channel, y, x) and labels (sample,).
        classes: names of the classes.
        step: step of the network's checkpoint.
        split: name of the split.
        examples: number of correct and of wrong examples to keep.

    Raises:
        SourceError: if `batches` is empty.
    """
    confusion = np.zeros((len(classes), len(classes)), np.int64)
    right: list[Example] = []
    wrong: list[Example] = []
    for samples, labels in batches:
        with torch.no_grad():
            answers = network(samples).argmax(1).cpu()
        np.add.at(confusion, (labels.cpu().numpy(), answers.numpy()), 1)
        for index, (truth, answer) in enumerate(zip(labels.tolist(), answers.tolist(), strict=True)):
            kept = right if truth == answer else wrong
            if len(kept) < examples:
                shown = to_image(signed(samples[index].float().cpu().numpy()))
                kept.append(Example(jpeg_uri(shown), classes[truth], classes[answer]))
    if not confusion.any():
        raise SourceError(f"{split} has no samples to classify")
    rows = tuple(tuple(int(value) for value in row) for row in confusion)
    return Classification(step, split, tuple(classes), rows, tuple(right), tuple(wrong))
