"""`[training]` of strategy supervised.

Knows: fields, units and defaults. Does not know: what the strategy does with them.
"""

from __future__ import annotations

from typing import Literal

from cotswold.recipe.schema.fields import (
    NotNegative,
    Positive,
    Times,
)
from cotswold.recipe.schema.strategy import LossObjective, SteppedTraining


class SupervisedTraining(SteppedTraining):
    """Layers, with labels, by stochastic gradient descent."""

    objective = LossObjective

    strategy: Literal["supervised"] = "supervised"
    """`supervised`: SGD through all layers."""
    learning_rate: Positive = 0.05
    """Peak learning rate of SGD."""
    weight_decay: NotNegative = 0.0
    """Weight decay: this factor times a weight is added to its gradient."""
    patience: Times | None = None
    """Stop after this many epochs without a better validation loss."""
