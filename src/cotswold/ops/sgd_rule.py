"""The update rule of a stack's filters and of α.

Knows: gradients, norms, momentum of some blocks; the terms of the line search. Does not know: maps, geometry.

The gradient of W~ is the gradient of W without its component along W, divided by the norm of W~ (Coates et
al. 2013, section 3, where W = W~ / ||W~||). One plain rate cannot serve every data set: the gradient scales
with α and with the power of a neuron's input, and training diverges or collapses. So the gradient is divided
by α times the fan-in, which is the mean squared norm of a neuron's input if inputs have an RMS of 1. Rates
from 1 to 10 then train raw digits, raw and whitened photographs and outputs of stacks. No filter moves by
more than a tenth of its norm in one step. α follows its own exact line search, with a floor that keeps it
above 0.
"""

from __future__ import annotations

from math import isnan

import torch
from torch import Tensor

from cotswold.ops.state import StepRule

ALPHA_RANGE = (1e-6, 1e6)
"""Range of α. With inputs of RMS 1 and unit filters no data set needs more, and nothing overflows."""
FLOOR = 0.1
"""Least α, as a fraction of its optimum for reconstruction alone."""
TINY = 1e-30
"""Added to divisors that may be 0; far below any square of float32 data."""


def reciprocal(norms: Tensor) -> Tensor:
    """Return ``1 / norms``, and 0 for a filter of zeros."""
    return torch.where(norms > 0, 1 / norms, 0)


def _lengths(filters: Tensor, dtype: torch.dtype) -> Tensor:
    """Norms ``(block, neuron)``; the sum runs along neurons, because torch's norm would stride over them."""
    wide = filters.to(dtype)
    return (wide * wide).sum((1, 2)).sqrt()


def filter_step(
    filters: Tensor, norms: Tensor, momentum: Tensor, gradient: Tensor, alpha: Tensor, rule: StepRule
) -> None:
    """Update the filters of some blocks in place; they end with norm 1.

    ``filters``, ``momentum`` and the gradient of W (which is overwritten) are ``(block, field_y, field_x *
    channel, neuron)``, ``norms`` ``(block, neuron)``.
    """
    unit, fan_in = reciprocal(norms), filters.shape[1] * filters.shape[2]
    along = torch.einsum("bfkn,bfkn->bn", filters.to(gradient.dtype), gradient) * unit * unit
    gradient.addcmul_(filters, along[:, None, None, :], value=-1)
    momentum.mul_(rule.momentum).addcmul_(
        gradient, (unit * (rule.rate / (alpha * fan_in)))[:, None, None, :].to(gradient.dtype), value=-1
    )
    length = _lengths(momentum, norms.dtype)
    shorter = (rule.longest * norms / (length + TINY)).clamp_max(1)
    momentum.mul_(shorter[:, None, None, :])
    filters.add_(momentum)
    filters.mul_(reciprocal(_lengths(filters, norms.dtype))[:, None, None, :])
    norms.copy_(_lengths(filters, norms.dtype))


def best_scale(overlap: Tensor, energy: Tensor, penalty: Tensor) -> Tensor:
    """Return the t that minimises ``||tD - x||² + penalty t``, for ``overlap = <D, x>``, ``energy = ||D||²``.

    t is negative if the penalty outweighs the gain of reconstruction, and 1 if D is 0.
    """
    return torch.where(energy > 0, (overlap - penalty / 2) / (energy + TINY), 1.0)


def floored_scale(overlap: Tensor, energy: Tensor, penalty: Tensor) -> Tensor:
    """Return the best t, but at least a tenth of the best t for reconstruction alone.

    With a large λ the best α of random filters is 0, and filters would have no slope to learn from.
    """
    alone = best_scale(overlap, energy, penalty * 0)
    return torch.maximum(best_scale(overlap, energy, penalty), alone * FLOOR)


def alpha_step(alpha: Tensor, overlap: Tensor, energy: Tensor, penalty: Tensor, rule: StepRule) -> None:
    """Move α in place by a damped step towards its best value on the batch."""
    if not alpha.is_cpu:
        factor = floored_scale(overlap, energy, penalty).clamp(0.5, 2.0) ** rule.damping
        alpha.mul_(factor).clamp_(*ALPHA_RANGE)
        return
    # the same by Python's numbers: twenty operations of torch take a tenth of a small stack's step
    wanted, power, weight = float(overlap), float(energy), float(penalty)
    alone, best = ((wanted - each / 2) / (power + TINY) if power > 0 else 1.0 for each in (0.0, weight))
    scale = _within(0.5, max(best, alone * FLOOR), 2.0)
    alpha.fill_(_within(ALPHA_RANGE[0], float(alpha) * scale**rule.damping, ALPHA_RANGE[1]))


def _within(least: float, value: float, most: float) -> float:
    """Return a value clamped to a range; NaN stays NaN."""
    return value if isnan(value) else min(max(value, least), most)
