"""The area under the ROC curve, by ranks.

Knows: scores and the samples that are positive. Does not know: losses, thresholds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cotswold.training.losses import is_classes
from cotswold.training.metrics.base import BuiltInMetric, MetricState
from cotswold.training.metrics.classes import class_scores, position_weights
from cotswold.training.metrics.numbers import number_pairs


class AreaUnderRoc(BuiltInMetric):
    """The probability that a positive sample has a higher score than a negative one; ties count half.

    Two classes: the score is the difference of their outputs. More classes: one against all others by the
    softmax of the outputs, as a mean over the classes that some samples have and others do not. Targets 0 and
    1 of the outputs' shape: one detector for each output, as a mean. The value is exact, so it keeps
    every score.
    """

    def update(self, output: Tensor, target: Tensor, weight: Tensor | None = None) -> None:
        """Add a batch; raises UserError for targets that are neither classes nor 0 and 1."""
        if is_classes(output, target):
            scores, right, weights = class_scores("auroc", output, target, weight)
            scores = scores.cpu().double()
            if scores.shape[1] == 2:
                scores, truths = scores[:, 1:] - scores[:, :1], right[:, None].cpu() == 1
            else:
                scores, truths = scores.softmax(1), right[:, None].cpu() == torch.arange(scores.shape[1])
        else:
            scores, wanted, _ = number_pairs("auroc", output, target, None)
            if bool(((wanted != 0) & (wanted != 1)).any()):
                class_scores("auroc", output, target, weight)  # states the shapes that it needs
            truths, weights = wanted == 1, position_weights(wanted[:, 0], weight)
        self._add({"scores": scores, "truths": truths, "weights": weights})

    def _add(self, state: MetricState) -> None:
        if not self._state:
            self._state = dict(state)
            return
        self._state = {name: torch.cat([self._state[name], value]) for name, value in state.items()}

    def compute(self) -> float:
        """Return the area; NaN if all samples have one class."""
        if not self._state:
            return torch.nan
        columns = zip(self._state["scores"].T, self._state["truths"].T, strict=True)
        areas = [_area(scores, truths, self._state["weights"]) for scores, truths in columns]
        found = torch.tensor(areas, dtype=torch.float64)
        return float(found[~found.isnan()].mean())


def _area(scores: Tensor, truths: Tensor, weights: Tensor) -> float:
    _, ranks = torch.unique(scores, return_inverse=True)
    count = int(ranks.max()) + 1 if len(ranks) else 0
    positives = ranks[truths].bincount(weights[truths], count)
    negatives = ranks[~truths].bincount(weights[~truths], count)
    below = negatives.cumsum(0) - negatives / 2  # half of the negatives with the same score
    pairs = float(positives.sum() * negatives.sum())
    return float((positives * below).sum()) / pairs if pairs else torch.nan
