"""The rule by which a stack's filters and α move.

Knows: gradients, norms, momentum of some blocks; the terms of the line search. Does not know: maps, geometry.

The gradient of W~ is the gradient of W without its part along W, over the norm of W~ (Coates et al. 2013,
section 3, where W = W~ / ||W~||). One rate cannot serve every set: a plain step scales with α and with the
power of the responses. So the gradient is divided by α times the mean square response, no filter turns by
more than a tenth of its norm at once, and α follows its own exact line search.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cotswold.ops.state import StepRule

ALPHA_RANGE = (1e-6, 1e6)
"""Where α stays: with inputs of RMS 1 and unit filters no set needs more, and nothing under- or overflows."""
TINY = 1e-30
"""What is added to a divisor that may be 0; far below any square of float32 data."""


def reciprocal(norms: Tensor) -> Tensor:
    """``1 / norms``, and 0 for a filter of zeros."""
    return torch.where(norms > 0, 1 / norms, 0)


def curvature(alpha: Tensor, squared_responses: Tensor, count: int) -> Tensor:
    """``α mean (Wx)²`` from the sum of squares of ``count`` responses ``αWx``; 0 without responses."""
    return squared_responses / (alpha * count)


def move(
    filters: Tensor, norms: Tensor, momentum: Tensor, gradient: Tensor, scale: Tensor, rule: StepRule
) -> None:
    """One step of some blocks' filters, in place; they end with norm 1.

    ``filters``, ``momentum`` and the gradient by W (which is overwritten) are ``(block, field_y, field_x *
    channel, neuron)``, ``norms`` ``(block, neuron)``; ``scale`` is the curvature that the gradient is divided
    by.
    """
    unit = reciprocal(norms)
    along = torch.einsum("bfkn,bfkn->bn", filters.to(gradient.dtype), gradient) * unit * unit
    gradient.addcmul_(filters, along[:, None, None, :], value=-1)
    momentum.mul_(rule.momentum).addcmul_(
        gradient, (unit * (rule.rate / (scale + TINY)))[:, None, None, :].to(gradient.dtype), value=-1
    )
    length = torch.linalg.vector_norm(momentum, dim=(1, 2), dtype=norms.dtype)
    shorter = (rule.longest * norms / (length + TINY)).clamp_max(1)
    momentum.mul_(shorter[:, None, None, :])
    filters.add_(momentum)
    length = torch.linalg.vector_norm(filters, dim=(1, 2), dtype=norms.dtype)
    filters.mul_(reciprocal(length)[:, None, None, :])
    norms.copy_(torch.linalg.vector_norm(filters, dim=(1, 2), dtype=norms.dtype))


def best_scale(overlap: Tensor, energy: Tensor, penalty: Tensor) -> Tensor:
    """The t that minimises ``||tD - x||² + penalty t``, from ``overlap = <D, x>`` and ``energy = ||D||²``.

    It is negative where the penalty outweighs what reconstruction gains, and 1 where D is 0.
    """
    return torch.where(energy > 0, (overlap - penalty / 2) / (energy + TINY), 1.0)


def search(alpha: Tensor, overlap: Tensor, energy: Tensor, penalty: Tensor, rule: StepRule) -> None:
    """Move α in place a damped way towards its best value on the batch."""
    factor = best_scale(overlap, energy, penalty).clamp(0.5, 2.0) ** rule.damping
    alpha.mul_(factor).clamp_(*ALPHA_RANGE)
