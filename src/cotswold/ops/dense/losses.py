"""The last layer of a dense network after its products: outputs, losses, slopes, correct samples.

Knows: formulas, in plain torch. Does not know: products, parameters, the order of sums over outputs, which is
an argument. Every tensor is ``(sample, output)``, in any strides.
"""

from __future__ import annotations

from collections.abc import Callable
from math import fsum

import torch
from torch import Tensor

from cotswold.ops.dense.spec import DenseSpec

Total = Callable[[Tensor], Tensor]
"""Function that sums ``(sample, output)`` over outputs, to ``(sample, 1)``."""


def output_sums(values: Tensor) -> Tensor:
    """Sum over outputs in torch's order."""
    return values.sum(1, keepdim=True)


def activate(name: str, sums: Tensor, total: Total = output_sums) -> Tensor:
    """Apply an activation in place."""
    if name == "tanh":
        return sums.tanh_()
    if name == "sigmoid":  # by an exponential: torch's sigmoid rounds differently at a loop's end
        return sums.neg_().exp_().add_(1).reciprocal_()
    if name == "relu":
        return sums.relu_()
    if name == "softmax":
        sums.sub_(sums.amax(1, keepdim=True)).exp_()
        return sums.div_(total(sums))
    return sums


def to_slope(name: str, gradient: Tensor, outputs: Tensor, total: Total = output_sums) -> Tensor:
    """Turn the gradient of an activation's outputs into that of its inputs, in place."""
    if name == "tanh":
        return gradient.addcmul_(gradient * outputs, outputs, value=-1)
    if name == "sigmoid":
        return gradient.mul_(outputs).mul_(1 - outputs)
    if name == "relu":
        return gradient.mul_(outputs > 0)
    if name == "softmax":
        return gradient.sub_(total(gradient * outputs)).mul_(outputs)
    return gradient


def count_correct(sums: Tensor, classes: Tensor) -> int:
    """Count samples whose greatest sum is at their own class, without a tie.

    Activations are monotonic: outputs have the same order, except where they saturate.
    """
    own = classes[:, None]
    found = sums.gather(1, own)
    sums.scatter_(1, own, -torch.inf)
    others = sums.amax(1, keepdim=True)
    sums.scatter_(1, own, found)
    return int((found > others).sum())


def finish(
    spec: DenseSpec, sums: Tensor, targets: Tensor, slopes: bool, total: Total = output_sums
) -> tuple[float, int]:
    """Return the sum of losses and the number of correct samples; with ``slopes``, sums become gradients."""
    wanted = _Targets(spec, sums, targets)
    count = 0 if wanted.classes is None else count_correct(sums, wanted.classes)
    losses = (_squared_error if spec.loss == "squared_error" else _cross_entropy)(
        spec, sums, wanted, slopes, total
    )
    return fsum(losses.flatten().tolist()), count


class _Targets:
    """Target outputs: values, or class numbers."""

    def __init__(self, spec: DenseSpec, sums: Tensor, targets: Tensor) -> None:
        self.low, self.high = spec.low, spec.high
        self.classes = None if targets.dtype.is_floating_point else targets.long()
        self.values = targets.t().to(sums.dtype) if self.classes is None else None

    def subtract_from(self, outputs: Tensor) -> Tensor:
        """Subtract the targets from outputs, in place."""
        if self.values is not None:
            return outputs.sub_(self.values)
        assert self.classes is not None, "there are values or classes"
        if self.low:
            outputs.sub_(self.low)
        change = outputs.new_full((len(outputs), 1), self.low - self.high)
        return outputs.scatter_add_(1, self.classes[:, None], change)

    def total(self, outputs: Tensor, total: Total) -> Tensor:
        """Sums of the targets over outputs."""
        if self.values is not None:
            return total(self.values)
        return outputs.new_full((len(outputs), 1), self.low * (outputs.shape[1] - 1) + self.high)

    def overlap(self, outputs: Tensor, total: Total) -> Tensor:
        """Sums over outputs of the targets times the outputs."""
        if self.values is not None:
            return total(outputs * self.values)
        assert self.classes is not None, "there are values or classes"
        found = outputs.gather(1, self.classes[:, None]) * (self.high - self.low)
        return found.add_(total(outputs), alpha=self.low) if self.low else found


def _squared_error(spec: DenseSpec, sums: Tensor, wanted: _Targets, slopes: bool, total: Total) -> Tensor:
    outputs = activate(spec.output, sums, total)
    error = wanted.subtract_from(outputs.clone() if slopes else outputs)
    losses = total(error.square())
    if slopes:
        sums.copy_(to_slope(spec.output, error.mul_(2), outputs, total))
    return losses


def _cross_entropy(spec: DenseSpec, sums: Tensor, wanted: _Targets, slopes: bool, total: Total) -> Tensor:
    overlap = wanted.overlap(sums, total)
    if spec.output == "softmax":
        every, most = wanted.total(sums, total), sums.amax(1, keepdim=True)
        losses = (total((sums - most).exp_()).log_() + most) * every - overlap
    else:  # log(1 + exp(s)), which does not overflow
        losses = total((-sums.abs()).exp_().log1p_().add_(sums.clamp_min(0))) - overlap
    if slopes:
        outputs = activate(spec.output, sums, total)
        wanted.subtract_from(outputs.mul_(every) if spec.output == "softmax" else outputs)
    return losses
