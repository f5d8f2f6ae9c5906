"""The state of a stack and the settings of its training.

Knows: the tensors of a stack, the constants of a step. Does not know: how a step is computed.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

Factors = tuple[Tensor, Tensor]
"""δ and x of a gradient ``δx'``."""


@dataclass
class StackState:
    """The tensors of a stack that training changes in place."""

    filters: Tensor
    """W~, ``(block_y, block_x, field_y, field_x * channel, neuron)``."""
    norms: Tensor
    """Norm of every filter, ``(block_y, block_x, neuron)``; the filters in use are W = W~ / norms."""
    momentum: Tensor
    """Last step of the filters, of their shape."""
    alpha: Tensor
    """α, the scale of the responses ``αWx``; a scalar tensor, float64 or float32."""
    gain: Tensor
    """Factor that scales the stack's input to a root mean square of 1; a scalar tensor."""
    master_filters: Tensor | None = None
    """float32 copy of bfloat16 or float16 filters, else None.

    Steps are added to this copy, and the filters are its rounded copy: most steps are below the precision of
    narrow filters.
    """


@dataclass(frozen=True)
class StackObjective:
    """Settings of the objective ``||W'(αWx) - x||² + λ sum_j sqrt(V_j (αWx)² + ε)``, a mean over images.

    Source:
        Coates et al. 2013, equation 1.
    """

    sparsity: float = 0.1
    """λ, the weight of the pooled responses."""
    epsilon: float = 1e-6
    """ε, under the root of pooling."""


@dataclass(frozen=True)
class StepRule:
    """Constants of one step, used by `sgd_rule.filter_step` and `sgd_rule.alpha_step`."""

    rate: float
    """Step size, in units of 1 / (α fan-in); 2 works for every data set tried."""
    momentum: float = 0.9
    """Fraction of the last step that is kept."""
    longest: float = 0.1
    """Maximum step of a filter, as a fraction of its norm."""
    damping: float = 0.1
    """Power of the factor by which the exact line search would change α."""


@dataclass(frozen=True)
class StackReport:
    """Values measured by a step; scalar tensors, so that no read waits for the device."""

    loss: Tensor
    """The objective, ``reconstruction + sparsity``, before the step."""
    reconstruction: Tensor
    """Mean over images of ``||W'(αWx) - x||²``."""
    sparsity: Tensor
    """Mean over images of ``λ sum_j sqrt(V_j (αWx)² + ε)``."""
    alpha: Tensor
    """α after the step."""
    input_gradient: Tensor | None
    """Gradient with respect to the batch, ``(image, channel, y, x)``, if requested."""
