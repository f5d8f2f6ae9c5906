"""The state of a stack and the terms of its training.

Knows: which numbers a stack consists of, which constants a step has. Does not know: how a step is computed.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass
class StackState:
    """Everything of a stack that training changes, in place."""

    filters: Tensor
    """W~, ``(block_y, block_x, field_y, field_x * channel, neuron)``."""
    norms: Tensor
    """The norm of every filter, ``(block_y, block_x, neuron)``; the filters in use are W = W~ / norms."""
    momentum: Tensor
    """The last step of the filters, shaped as they are."""
    alpha: Tensor
    """α, the scale of the responses ``αWx``; no dimensions, float64 or float32."""
    gain: Tensor
    """What the stack's input is multiplied by so that its root mean square is 1; no dimensions."""
    masters: Tensor | None = None
    """The filters in float32, if they are bfloat16 or float16; None for wider ones. Steps are added to
    these, and the filters are their rounded copies: most steps are below the precision of narrow filters."""


@dataclass(frozen=True)
class StackObjective:
    """``||W'(αWx) - x||² + λ sum_j sqrt(V_j (αWx)² + ε)``, a mean over images (Coates et al. 2013, (1))."""

    sparsity: float = 0.1
    """λ, the weight of the pooled responses."""
    epsilon: float = 1e-6
    """ε, under the root of pooling."""


@dataclass(frozen=True)
class StepRule:
    """Constants of one step; `rule.move` and `rule.search` say what they do."""

    rate: float
    """Step size, in units of 1 / (α fan-in); 2 suits every set that was tried."""
    momentum: float = 0.9
    """Part of the last step that is kept."""
    longest: float = 0.1
    """The longest step of a filter, as a part of its norm."""
    damping: float = 0.1
    """Power of the factor by which the exact line search would change α."""


@dataclass(frozen=True)
class StackReport:
    """What a step saw before it changed anything; scalars are tensors, so that nothing waits for a device."""

    loss: Tensor
    """The objective: ``reconstruction + sparsity``."""
    reconstruction: Tensor
    """Mean over images of ``||W'(αWx) - x||²``."""
    sparsity: Tensor
    """Mean over images of ``λ sum_j sqrt(V_j (αWx)² + ε)``."""
    alpha: Tensor
    """α after the step."""
    input_gradient: Tensor | None
    """The gradient by the batch, where it was asked for."""
