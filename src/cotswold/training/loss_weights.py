"""The weight of a batch's loss in the loss of a larger batch, of which it is a part.

Knows: which losses are sums, means over samples, or means over counted targets with class weights. Does not
know: replicas, steps, gradients.

The loss of the larger batch is ``sum(weight * loss) / divisor`` over its parts. Accumulation and replicas use
the same weights, so both give the gradient of one process with the larger batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from cotswold.training.losses import Loss, is_classes, is_sum, target_weights
from cotswold.training.strategies.base import Batch

PossibleWeights = Sequence[float]
"""The samples of a batch, and its counted targets by class weight, in samples: the outputs decide which."""


@dataclass(frozen=True)
class LossWeight:
    """The weight of a batch's loss.

    Args:
        value: The weight.
        is_sum: True if losses of parts add up.
    """

    value: float
    is_sum: bool = False


def divisor_of(parts: Sequence[LossWeight]) -> float:
    """Return the number that divides the weighted losses of parts; 1 if no target counts."""
    return 1.0 if parts[0].is_sum else sum(each.value for each in parts) or 1.0


def possible_weights(loss: Loss, batch: Batch) -> PossibleWeights:
    """Return the weights that a batch may have, which are known before its forward pass."""
    targets = batch.targets
    assert targets is not None, "a supervised run reads labelled data"
    samples, counted = 0 if batch.is_idle else len(targets), 0.0
    if samples and not targets.is_floating_point():
        counted = float(target_weights(loss, targets).sum()) * samples / targets.numel()
    return [float(samples), counted]


def loss_weight(loss: Loss, batch: Batch, outputs: Tensor, possible: PossibleWeights) -> LossWeight:
    """Return the weight of a batch's loss, which is 1 for a sum; ``possible`` are its possible weights.

    With weights of samples, every loss is a mean over samples (`batches.weighted`).
    """
    if batch.weights is None and is_sum(loss):
        return LossWeight(1.0, is_sum=True)
    is_counted = batch.weights is None and batch.targets is not None and is_classes(outputs, batch.targets)
    return LossWeight(possible[is_counted])
