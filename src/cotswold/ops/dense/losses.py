"""The last layer of a dense network after its products: outputs, losses, slopes, how many are right.

Knows: formulas, in plain torch. Does not know: products, parameters. Everything is ``(pattern, output)``, in
any strides.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from cotswold.ops.dense.spec import DenseSpec


def activate(name: str, sums: Tensor) -> Tensor:
    """An activation, in place."""
    if name == "tanh":
        return sums.tanh_()
    if name == "sigmoid":
        return sums.sigmoid_()
    if name == "relu":
        return sums.relu_()
    return sums.copy_(torch.softmax(sums, 1)) if name == "softmax" else sums


def to_slope(name: str, gradient: Tensor, outputs: Tensor) -> Tensor:
    """The gradient by an activation's sums, from that by its outputs, in place."""
    if name == "tanh":
        return gradient.addcmul_(gradient * outputs, outputs, value=-1)
    if name == "sigmoid":
        return gradient.mul_(outputs).mul_(1 - outputs)
    if name == "relu":
        return gradient.mul_(outputs > 0)
    if name == "softmax":
        return gradient.sub_((gradient * outputs).sum(1, keepdim=True)).mul_(outputs)
    return gradient


def right(sums: Tensor, classes: Tensor) -> int:
    """How many patterns have the greatest sum at their own class, and nowhere else.

    Activations are monotonic: outputs are in the same order, but where they saturate.
    """
    own = classes.long()[:, None]
    found = sums.gather(1, own)
    sums.scatter_(1, own, -torch.inf)
    others = sums.amax(1, keepdim=True)
    sums.scatter_(1, own, found)
    return int((found > others).sum())


def finish(spec: DenseSpec, sums: Tensor, targets: Tensor, slopes: bool) -> tuple[float, int]:
    """The sum of losses and how many are right; ``slopes``: sums become the loss's gradient by them."""
    classes = None if targets.dtype.is_floating_point else targets.long()
    count = right(sums, classes) if classes is not None else 0
    wanted = targets.t().to(sums.dtype) if classes is None else None
    if spec.loss == "squared_error":
        return _squared_error(spec, sums, wanted, classes, slopes), count
    return _cross_entropy(spec, sums, wanted, classes, slopes), count


def _less(spec: DenseSpec, outputs: Tensor, wanted: Tensor | None, classes: Tensor | None) -> Tensor:
    """Outputs less what they should be, in place."""
    if wanted is not None:
        return outputs.sub_(wanted)
    assert classes is not None
    if spec.low:
        outputs.sub_(spec.low)
    change = outputs.new_full((len(outputs), 1), spec.low - spec.high)
    return outputs.scatter_add_(1, classes[:, None], change)


def _total(losses: Tensor) -> float:
    """The sum of what patterns lose, each summed before."""
    return float(losses.sum(dtype=torch.float64))


def _squared_error(
    spec: DenseSpec, sums: Tensor, wanted: Tensor | None, classes: Tensor | None, slopes: bool
) -> float:
    outputs = activate(spec.output, sums)
    error = _less(spec, outputs.clone() if slopes else outputs, wanted, classes)
    loss = _total(error.square().sum(1))
    if slopes:
        gradient = to_slope(spec.output, error.mul_(2), outputs)
        sums.copy_(gradient)
    return loss


def _cross_entropy(
    spec: DenseSpec, sums: Tensor, wanted: Tensor | None, classes: Tensor | None, slopes: bool
) -> float:
    if wanted is None:
        total = sums.new_full((len(sums),), spec.low * (sums.shape[1] - 1) + spec.high)
        overlap = _overlap(spec, sums, classes)
    else:
        total = wanted.sum(1)
        overlap = (sums * wanted).sum(1)
    if spec.output == "softmax":
        loss = _total(torch.logsumexp(sums, 1) * total - overlap)
    else:
        loss = _total(functional.softplus(sums).sum(1) - overlap)
    if slopes:
        outputs = activate(spec.output, sums)
        if spec.output == "softmax":
            outputs.mul_(total[:, None])
        _less(spec, outputs, wanted, classes)
    return loss


def _overlap(spec: DenseSpec, sums: Tensor, classes: Tensor | None) -> Tensor:
    """The sums of a pattern, weighted by what its outputs should be."""
    assert classes is not None
    found = sums.gather(1, classes[:, None])[:, 0] * (spec.high - spec.low)
    return found + spec.low * sums.sum(1) if spec.low else found
