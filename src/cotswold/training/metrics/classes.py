"""Metrics of classes: accuracy, top-k accuracy, macro averages of precision, recall and F1.

Knows: scores of classes and the right ones. Does not know: losses, which targets a loss ignores.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from cotswold.errors import UserError
from cotswold.training.losses import is_classes
from cotswold.training.metrics.base import SumMetric, ratio


def class_scores(
    what: str, output: Tensor, target: Tensor, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores ``(position, class)``, right classes and weights ``(position,)``; ``what`` is the metric.

    Raises UserError unless outputs have one score for each class, and targets are classes.
    """
    if not is_classes(output, target):
        raise UserError(
            f"{what} needs classes: outputs (sample, class) and whole numbers as targets (sample,); the "
            f"outputs have the shape {tuple(output.shape)}, the targets {tuple(target.shape)} and "
            f"{str(target.dtype).removeprefix('torch.')}"
        )
    scores = output.detach().movedim(1, -1).reshape(-1, output.shape[1])
    right = target.reshape(-1).long()
    if len(right) and not 0 <= int(right.min()) <= int(right.max()) < scores.shape[1]:
        raise UserError(
            f"{what} received classes from {int(right.min())} to {int(right.max())}, but the outputs have "
            f"{scores.shape[1]} classes, from 0; if the loss ignores a class, give it as ignore_index"
        )
    return scores, right, position_weights(target, weight)


def position_weights(target: Tensor, weight: Tensor | None) -> Tensor:
    """Return a weight for each position of targets ``(sample, …)``, flat; all 1 without weights."""
    if weight is None:
        return torch.ones(target.numel(), dtype=torch.float64)
    wide = weight.detach().cpu().double().reshape(-1, *(1 for _ in target.shape[1:]))
    return wide.expand(target.shape).reshape(-1)


class Accuracy(SumMetric):
    """The fraction of samples whose largest output is the right class."""

    def update(self, output: Tensor, target: Tensor, weight: Tensor | None = None) -> None:
        """Add a batch."""
        scores, right, weights = class_scores("accuracy", output, target, weight)
        hits = (scores.argmax(1) == right).cpu()
        self._add({"right": weights[hits].sum(), "weight": weights.sum()})

    def compute(self) -> float:
        """Return the accuracy."""
        return ratio(self._state.get("right"), self._state.get("weight"))


class TopAccuracy(SumMetric):
    """The fraction of samples whose right class is among the ``count`` largest outputs."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def update(self, output: Tensor, target: Tensor, weight: Tensor | None = None) -> None:
        """Add a batch; raises UserError if there are fewer classes than ``count``."""
        scores, right, weights = class_scores(f"top{self._count}", output, target, weight)
        if self._count > scores.shape[1]:
            raise UserError(
                f"top{self._count} needs at least {self._count} classes, but the outputs have "
                f"{scores.shape[1]}; use a smaller number, or accuracy"
            )
        hits = (scores.topk(self._count, 1).indices == right[:, None]).any(1).cpu()
        self._add({"right": weights[hits].sum(), "weight": weights.sum()})

    def compute(self) -> float:
        """Return the top-k accuracy."""
        return ratio(self._state.get("right"), self._state.get("weight"))


class MacroAverage(SumMetric):
    """A figure of each class from its counts, averaged over the classes that occur.

    A class occurs if it is the target or the prediction of some sample, as in scikit-learn.
    """

    name: str
    """The name of the metric in errors."""

    @abstractmethod
    def _figure(self, hits: Tensor, predicted: Tensor, actual: Tensor) -> Tensor:
        """Return the figure of each class ``(class,)``; a quotient by 0 gives 0."""

    def update(self, output: Tensor, target: Tensor, weight: Tensor | None = None) -> None:
        """Add a batch."""
        scores, right, weights = class_scores(self.name, output, target, weight)
        answers, right, count = scores.argmax(1).cpu(), right.cpu(), scores.shape[1]
        hits = answers == right
        self._add(
            {
                "hits": right[hits].bincount(weights[hits], count),
                "predicted": answers.bincount(weights, count),
                "actual": right.bincount(weights, count),
            }
        )

    def compute(self) -> float:
        """Return the mean over the classes that occur."""
        if not self._state:
            return torch.nan
        hits, predicted, actual = (self._state[name] for name in ("hits", "predicted", "actual"))
        return float(self._figure(hits, predicted, actual)[predicted + actual > 0].mean())


class MacroPrecision(MacroAverage):
    """The fraction of predictions of a class that are right, as a mean over classes."""

    name = "macro_precision"

    def _figure(self, hits: Tensor, predicted: Tensor, actual: Tensor) -> Tensor:
        return _quotients(hits, predicted)


class MacroRecall(MacroAverage):
    """The fraction of samples of a class that are found, as a mean over classes."""

    name = "macro_recall"

    def _figure(self, hits: Tensor, predicted: Tensor, actual: Tensor) -> Tensor:
        return _quotients(hits, actual)


class MacroF1(MacroAverage):
    """The harmonic mean of precision and recall of a class, as a mean over classes."""

    name = "macro_f1"

    def _figure(self, hits: Tensor, predicted: Tensor, actual: Tensor) -> Tensor:
        return _quotients(2 * hits, predicted + actual)


def _quotients(numerators: Tensor, denominators: Tensor) -> Tensor:
    return torch.where(denominators > 0, numerators / denominators.clamp(min=1e-300), 0.0)
