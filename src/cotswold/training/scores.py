"""The score of a batch: the number of targets that count, and the number predicted correctly.

Knows: outputs, targets, the targets that a loss ignores. Does not know: networks, steps, means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cotswold.errors import UserError
from cotswold.shards.runtime.work import LEFT_OUT, UNJUDGED
from cotswold.training.losses import Loss, counted_mask, is_classes, is_detector


@dataclass(frozen=True)
class Score:
    """The score of one batch."""

    samples: int
    scored: int
    """The number of targets that can be right or wrong."""
    correct: int | None
    """The number of correct predictions; None if targets are neither classes nor a detector's answers."""
    targets: int
    """The number of targets, including ignored ones."""

    @property
    def weight(self) -> float:
        """The weight of the batch's loss in a mean over samples: the samples, minus the ignored ones."""
        return self.samples if self.correct is None else self.samples * self.scored / max(1, self.targets)

    @property
    def accuracy(self) -> float | None:
        """The fraction of scored targets that are correct; None if no target is scored."""
        return None if self.correct is None or not self.scored else self.correct / self.scored

    @property
    def sums(self) -> Mapping[str, float]:
        """Sums over batches, in samples: ``right``, and ``left_out`` if targets are ignored.

        ``unjudged`` counts the samples of a batch in which no target can be scored.
        """
        if self.correct is None:
            return {} if self.scored else {UNJUDGED: float(self.samples)}
        right, left_out = self.correct * self.samples / max(1, self.targets), self.samples - self.weight
        return {"right": right, **({LEFT_OUT: left_out} if left_out else {})}


class Scores:
    """The running scores and losses of a validation set."""

    def __init__(self) -> None:
        self.samples = 0
        self._loss = self._weight = 0.0
        self._correct = self._scored = 0

    def add(self, loss: float, found: Score) -> None:
        """Add the mean loss and the score of a batch."""
        self.samples += found.samples
        self._weight += found.weight
        self._loss += loss * found.weight
        if found.correct is not None:
            self._correct += found.correct
            self._scored += found.scored

    def means(self) -> dict[str, float] | None:
        """Return the mean ``loss``, and the ``accuracy`` of classes; None without samples.

        Raises UserError if the loss ignores every sample.
        """
        if not self.samples:
            return None
        if not self._weight:
            raise UserError(
                "the loss ignores every target of the validation set; use a set with targets that count, "
                "or none"
            )
        means = {"loss": self._loss / self._weight}
        return {**means, "accuracy": self._correct / self._scored} if self._scored else means


@torch.no_grad()
def score(loss: Loss, outputs: object, targets: Tensor) -> Score:
    """Return the score of outputs against their targets, with the targets that the loss counts."""
    samples, everything = len(targets), targets.numel()
    unknown = Score(samples, everything, None, everything)
    if not isinstance(outputs, Tensor):
        return unknown
    if is_detector(loss) and outputs.numel() == everything == samples:
        if bool(((targets != 0) & (targets != 1)).any()):
            return unknown
        return Score(samples, samples, int(((outputs > 0).flatten() == targets.flatten()).sum()), samples)
    if not is_classes(outputs, targets):
        return unknown
    mask = counted_mask(loss, targets)
    if bool((targets[mask] >= outputs.shape[1]).any()):  # the loss may ignore these without declaring it
        return Score(samples, 0, None, everything)
    right = int(((outputs.argmax(1) == targets) & mask).sum())
    return Score(samples, int(mask.sum()), right, everything)
