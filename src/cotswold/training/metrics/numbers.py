"""Metrics of predicted numbers: absolute and squared errors, explained variance.

Knows: outputs and targets of one shape. Does not know: losses, units.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cotswold.errors import UserError
from cotswold.training.metrics.base import BuiltInMetric, MetricState, SumMetric, ratio
from cotswold.training.metrics.classes import position_weights


def number_pairs(
    what: str, output: Tensor, target: Tensor, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return outputs, targets and weights ``(sample, number)``, in float64; ``what`` is the metric.

    Raises UserError unless outputs and targets have one shape.
    """
    if output.shape != target.shape or not output.dim():
        raise UserError(
            f"{what} needs targets of the outputs' shape, but the outputs have the shape "
            f"{tuple(output.shape)}, the targets {tuple(target.shape)}; for classes use accuracy or another "
            "metric of classes"
        )
    samples = len(output)
    found, wanted = (each.detach().cpu().double().reshape(samples, -1) for each in (output, target))
    return found, wanted, position_weights(found, weight).reshape(found.shape)


class MeanAbsoluteError(SumMetric):
    """The mean absolute difference over all samples and targets."""

    def update(self, output: Tensor, target: Tensor, weight: Tensor | None = None) -> None:
        """Add a batch."""
        found, wanted, weights = number_pairs("mae", output, target, weight)
        self._add({"error": (weights * (found - wanted).abs()).sum(), "weight": weights.sum()})

    def compute(self) -> float:
        """Return the mean absolute error."""
        return ratio(self._state.get("error"), self._state.get("weight"))


class RootMeanSquaredError(SumMetric):
    """The root of the mean squared difference over all samples and targets."""

    def update(self, output: Tensor, target: Tensor, weight: Tensor | None = None) -> None:
        """Add a batch."""
        found, wanted, weights = number_pairs("rmse", output, target, weight)
        self._add({"error": (weights * (found - wanted).square()).sum(), "weight": weights.sum()})

    def compute(self) -> float:
        """Return the root mean squared error."""
        return float(ratio(self._state.get("error"), self._state.get("weight")) ** 0.5)


class ExplainedVariance(BuiltInMetric):
    """R² of each target, as a mean over the targets that vary; NaN if none does.

    Means and squared deviations of parts are combined without cancellation. Source: Chan, Golub and LeVeque
    1983, "Algorithms for computing the sample variance", equation 2.1b.
    """

    def update(self, output: Tensor, target: Tensor, weight: Tensor | None = None) -> None:
        """Add a batch."""
        found, wanted, weights = number_pairs("r2", output, target, weight)
        total = weights.sum(0)
        if not len(found) or not bool((total > 0).any()):
            return
        mean = (weights * wanted).sum(0) / total
        self._add(
            {
                "weight": total,
                "mean": mean,
                "deviation": (weights * (wanted - mean).square()).sum(0),
                "error": (weights * (found - wanted).square()).sum(0),
            }
        )

    def _add(self, state: MetricState) -> None:
        if not self._state:
            self._state = dict(state)
            return
        ours, own = state, self._state
        weight = own["weight"] + ours["weight"]
        shift = ours["mean"] - own["mean"]
        self._state = {
            "weight": weight,
            "mean": own["mean"] + shift * ours["weight"] / weight,
            "deviation": own["deviation"]
            + ours["deviation"]
            + shift.square() * own["weight"] * ours["weight"] / weight,
            "error": own["error"] + ours["error"],
        }

    def compute(self) -> float:
        """Return R²."""
        if not self._state:
            return torch.nan
        varies = self._state["deviation"] > 0
        return float((1 - self._state["error"] / self._state["deviation"])[varies].mean())
