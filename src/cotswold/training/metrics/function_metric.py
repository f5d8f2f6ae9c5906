"""A plain function as a metric.

Knows: one number for each batch, and its mean over samples. Does not know: what the function computes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cotswold.errors import UserError
from cotswold.training.metrics.base import SumMetric, ratio

BatchFunction = Callable[[Tensor, Tensor], float | Tensor]
"""A function of the outputs and targets of a batch that returns one number, a mean over its samples."""


class FunctionMetric(SumMetric):
    """The mean over samples of a function's values; sample weights do not change it."""

    def __init__(self, function: BatchFunction) -> None:
        super().__init__()
        self._function = function

    def update(self, output: Tensor, target: Tensor, weight: Tensor | None = None) -> None:
        """Add a batch; raises UserError if the function does not return one number."""
        found = self._function(output, target)
        if isinstance(found, bool) or not hasattr(found, "__float__") or getattr(found, "ndim", 0) > 0:
            shape = getattr(found, "shape", None)
            kind = f"{type(found).__name__}{'' if shape is None else f' of shape {tuple(shape)}'}"
            raise UserError(f"it returned a {kind}; return one number, a mean over the samples of the batch")
        samples = float(len(target))
        self._add(
            {
                "total": torch.tensor(float(found) * samples, dtype=torch.float64),
                "samples": torch.tensor(samples, dtype=torch.float64),
            }
        )

    def compute(self) -> float:
        """Return the mean over samples."""
        return ratio(self._state.get("total"), self._state.get("samples"))
