"""The last layer of a dense network by the library's kernels: losses, slopes, correct samples.

Knows: the losses that have kernels, how to combine the groups of a pass. Does not know: products.
"""

from __future__ import annotations

from math import fsum, log
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotswold.kernels import dense
from cotswold.kernels.dense import Layer, Operand, Operation
from cotswold.ops.dense.losses import finish as finish_by_torch
from cotswold.ops.dense.matrices import Matrix, add_row_sums, row_totals
from cotswold.ops.dense.spec import DenseSpec

Singles: TypeAlias = NDArray[np.float32]
Doubles: TypeAlias = NDArray[np.float64]


def finish(
    spec: DenseSpec, sums: Matrix, biases: Tensor, targets: Tensor, bias_gradient: Tensor | None
) -> tuple[float, int]:
    """Return the sum of losses and the number of correct samples.

    With a bias gradient, add to it and replace the sums by slopes.
    """
    if not _has_passes(spec, sums.padded.dtype, targets):
        outputs = sums.view.add_(biases[:, None]).t()
        found = finish_by_torch(spec, outputs, targets, bias_gradient is not None, row_totals)
        if bias_gradient is not None:
            add_row_sums(sums, bias_gradient)
        return found
    operands: dict[Operand, Tensor] = {"sums": sums.padded, "biases": biases}
    if bias_gradient is not None:
        operands["bias_gradient"] = bias_gradient
    pitch = 0
    if targets.dtype.is_floating_point:
        operands["other"] = values = _rows(targets)
        pitch = values.stride(0)
    else:
        classes = torch.full((dense.padded_lanes(sums.columns),), -1, dtype=torch.int32, device="cpu")
        classes[: sums.columns] = targets
        operands["classes"] = classes
    layer = Layer(sums.rows, sums.columns, sums.pitch, pitch, spec.low, spec.high)
    operands["partials"] = dense.partials_of(layer)
    return (_squared if spec.loss == "squared_error" else _softmax)(spec, layer, operands)


def _has_passes(spec: DenseSpec, dtype: torch.dtype, targets: Tensor) -> bool:
    if dtype != torch.float32:
        return False
    if spec.loss == "squared_error":
        return spec.output != "softmax"
    return spec.output == "softmax" and spec.low == 0 and not targets.dtype.is_floating_point


def _rows(targets: Tensor) -> Tensor:
    """Return target values as rows of float32 samples."""
    values = targets.to(torch.float32)
    return values if values.stride(1) == 1 and values.stride(0) > 0 else values.contiguous()


def _groups(layer: Layer, operands: dict[Operand, Tensor]) -> Singles:
    """Partial results of the groups, ``(group, number, sample)``."""
    found: Singles = operands["partials"][:, :, : layer.lanes].numpy()
    return found


def _squared(spec: DenseSpec, layer: Layer, operands: dict[Operand, Tensor]) -> tuple[float, int]:
    values, slopes = "other" in operands, "bias_gradient" in operands
    dense.run(Operation("squared", spec.output, values, slopes), layer, operands)
    found = _groups(layer, operands)
    losses = _sum_groups(found[:, 0])
    return fsum(losses.tolist()), 0 if values else _count_correct(found, losses)


def _softmax(spec: DenseSpec, layer: Layer, operands: dict[Operand, Tensor]) -> tuple[float, int]:
    """Cross entropy of a softmax: exponentials are relative to the maximum of each group, then of all."""
    slopes = "bias_gradient" in operands
    dense.run(Operation("softmax", slopes=slopes), layer, operands)
    found = _groups(layer, operands)
    own, greatest = found[:, 1].max(0).astype(np.float64), found[:, 1:].max(1).astype(np.float64)
    most = greatest.max(0)
    scales: Doubles = torch.from_numpy(greatest - most).exp_().numpy()
    sums = _sum_groups(found[:, 0] * scales)
    losses = spec.high * (most - own + np.array([log(one) for one in sums.tolist()]))
    count = _count_correct(found, losses)
    if slopes:
        found[:, 0] = scales * (spec.high / sums)
        dense.run(Operation("softmax_slopes"), layer, operands)
    return fsum(losses.tolist()), count


def _sum_groups(groups: Singles | Doubles) -> Doubles:
    """Sum ``(group, sample)`` over groups in order; NumPy would add a single sample's in another order."""
    total = np.zeros(groups.shape[1])
    for one in groups:
        total += one
    return total


def _count_correct(found: Singles, losses: Doubles) -> int:
    """Count samples whose greatest sum is at their own class; a NaN loss does not count."""
    greater = found[:, 1].max(0) > found[:, 2].max(0)
    return int((greater & ~np.isnan(losses)).sum())
