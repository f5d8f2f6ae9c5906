"""The score of a batch: the number of targets that count, and the number predicted correctly.

Knows: outputs, targets, the targets that a loss ignores. Does not know: networks, steps, means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cotswold.errors import UserError
from cotswold.run import Metrics
from cotswold.shards.runtime.work import LEFT_OUT, UNJUDGED
from cotswold.training.loss_weights import LossWeight, divisor_of
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
    right_weight: float | None = None
    """The weights of the samples that are predicted correctly; None if samples have no weights."""
    scored_weight: float = 0.0
    """The weights of the samples with scored targets."""

    @property
    def weight(self) -> float:
        """The weight of the batch's loss in a mean over samples: the samples, minus the ignored ones."""
        return self.samples if self.correct is None else self.samples * self.scored / max(1, self.targets)

    @property
    def accuracy_weight(self) -> float:
        """The weight of the accuracy in a mean over batches; 0 if no target is scored."""
        return self.weight if self.right_weight is None else self.scored_weight

    @property
    def accuracy(self) -> float | None:
        """The fraction of scored targets that are correct, by weight; None if no target is scored."""
        if self.right_weight is not None:
            return self.right_weight / self.scored_weight if self.scored_weight else None
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
        self._correct = self._scored = 0.0

    def add(self, loss: float, found: Score, weight: float | None = None) -> None:
        """Add the loss and the score of a batch; ``weight`` is that of the loss [the counted samples]."""
        self.samples += found.samples
        weight = found.weight if weight is None else weight
        self._weight += weight
        self._loss += loss * weight
        if found.right_weight is not None:
            self._correct += found.right_weight
            self._scored += found.scored_weight
        elif found.correct is not None:
            self._correct += found.correct
            self._scored += found.scored

    def reduce(self, total: Callable[[Tensor], Tensor]) -> None:
        """Replace the sums by those over all replicas, which ``total`` adds up."""
        own = [self.samples, self._loss, self._weight, self._correct, self._scored]
        sums = total(torch.tensor(own, dtype=torch.float64, device="cpu")).tolist()
        self._loss, self._weight = sums[1:3]
        self.samples, self._correct, self._scored = (int(sums[at]) for at in (0, 3, 4))

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


@dataclass(frozen=True)
class BatchResult:
    """The result of one batch of an update.

    Args:
        metrics: Loss, samples and accuracy.
        weight: The weight of the loss.
        scored: The weight of the accuracy.
    """

    metrics: Metrics
    weight: LossWeight
    scored: float = 0.0


def mean_of(parts: Sequence[BatchResult]) -> Metrics:
    """Return the metrics of all batches of one update together; those of a single batch unchanged."""
    found = [each.metrics for each in parts]
    if len(found) == 1:
        return found[0]
    judged = [(each.metrics.details["accuracy"], each.scored) for each in parts if each.scored]
    scored = sum(own for _, own in judged)
    return Metrics(
        sum(each.metrics.loss * each.weight.value for each in parts)
        / divisor_of([each.weight for each in parts]),
        sum(each.samples for each in found),
        {"accuracy": sum(each * own for each, own in judged) / scored} if scored else {},
        sum(each.mean_weight for each in found),
        next((each.remedy for each in found if each.remedy), ""),
    )


@torch.no_grad()
def score(loss: Loss, outputs: object, targets: Tensor, weights: Tensor | None = None) -> Score:
    """Return the score of outputs against their targets, with the targets that the loss counts.

    ``weights`` of samples ``(sample,)`` or ``(sample, 1)`` weight the accuracy.
    """
    samples, everything = len(targets), targets.numel()
    unknown = Score(samples, everything, None, everything)
    if not isinstance(outputs, Tensor):
        return unknown
    if is_detector(loss) and outputs.numel() == everything == samples:
        if bool(((targets != 0) & (targets != 1)).any()):
            return unknown
        right = (outputs > 0).flatten() == targets.flatten()
        return _weighted(Score(samples, samples, int(right.sum()), samples), right, None, weights)
    if not is_classes(outputs, targets):
        return unknown
    mask = counted_mask(loss, targets)
    if bool((targets[mask] >= outputs.shape[1]).any()):  # the loss may ignore these without declaring it
        return Score(samples, 0, None, everything)
    right = (outputs.argmax(1) == targets) & mask
    return _weighted(Score(samples, int(mask.sum()), int(right.sum()), everything), right, mask, weights)


def _weighted(found: Score, right: Tensor, mask: Tensor | None, weights: Tensor | None) -> Score:
    """Return a score with the weights of the samples, if they have any; ``mask`` marks scored targets."""
    if weights is None:
        return found
    each = weights.detach().double().reshape(-1, *(1 for _ in right.shape[1:])).expand(right.shape)
    scored = each if mask is None else each[mask]
    return replace(found, right_weight=float(each[right].sum()), scored_weight=float(scored.sum()))
