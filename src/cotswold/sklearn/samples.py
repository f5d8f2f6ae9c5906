"""Samples with weights, and the losses on them.

Knows: tensors, losses. Does not know: scikit-learn, methods.

Weighted samples keep their weight in the last column of their targets, so that every process which reads a
sample has its weight too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

AnyArray = NDArray[np.generic]


@dataclass(frozen=True)
class WeightedSamples:
    """Inputs ``(sample, feature)``, and targets as a loss of this module reads them."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

    @classmethod
    def of(
        cls, inputs: AnyArray, targets: AnyArray, weights: NDArray[np.float64] | None, dtype: torch.dtype
    ) -> WeightedSamples:
        """Return samples of arrays.

        Args:
            inputs: ``(sample, feature)``.
            targets: Classes ``(sample,)`` from 0, or values ``(sample, output)``.
            weights: ``(sample,)``, of any sum above 0; None weighs all alike.
            dtype: Dtype of inputs and values.
        """
        given = torch.from_numpy(np.array(inputs)).to(dtype)
        wanted = torch.from_numpy(np.array(targets))
        wanted = wanted.long() if wanted.dim() == 1 else wanted.to(dtype)
        if weights is not None:  # of mean 1, so that the mean over samples is the weighted mean
            column = torch.from_numpy(weights / weights.mean()).to(dtype).unsqueeze(1)
            wanted = torch.cat([wanted.to(dtype).view(len(given), -1), column], 1)
        return cls(given, wanted)

    def part(self, start: int, stop: int) -> WeightedSamples:
        """Return a range of samples, as views."""
        return WeightedSamples(self.inputs[start:stop], self.targets[start:stop])


def logistic(outputs: Tensor, targets: Tensor) -> Tensor:
    """Logistic loss of one output ``(sample, 1)`` for classes 0 and 1."""
    return functional.binary_cross_entropy_with_logits(outputs[:, 0], targets.to(outputs.dtype))


def weighted_logistic(outputs: Tensor, targets: Tensor) -> Tensor:
    """The same, where targets ``(sample, 2)`` are classes and weights."""
    return functional.binary_cross_entropy_with_logits(outputs[:, 0], targets[:, 0], targets[:, 1])


def half_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half of the squared error, the mean over outputs and samples; the loss of `MLPRegressor`."""
    return 0.5 * functional.mse_loss(outputs, targets)


def weighted_half_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The same, where the last column of the targets has the weights of the samples."""
    errors = (outputs - targets[:, :-1]).square().mean(1)
    return 0.5 * (errors * targets[:, -1]).mean()


def weighted_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Softmax cross-entropy, where targets ``(sample, 2)`` are classes and weights."""
    losses = functional.cross_entropy(outputs, targets[:, 0].long(), reduction="none")
    return (losses * targets[:, 1]).mean()
