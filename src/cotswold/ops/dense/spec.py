"""What a fully connected network computes, without its parameters.

Knows: sizes, activations, losses, where a layer's parameters lie in the flat vector. Does not know: how
anything is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from torch import Tensor

DenseActivation = Literal["tanh", "sigmoid", "relu", "identity"]
DenseOutput = Literal["tanh", "sigmoid", "softmax", "identity"]
DenseLoss = Literal["squared_error", "cross_entropy"]
ACTIVATIONS: tuple[DenseActivation, ...] = ("tanh", "sigmoid", "relu", "identity")
OUTPUTS: tuple[DenseOutput, ...] = ("tanh", "sigmoid", "softmax", "identity")
LOSSES: tuple[DenseLoss, ...] = ("squared_error", "cross_entropy")


@dataclass(frozen=True)
class DenseSpec:
    """A network: what follows its hidden layers and its last one, and what is minimised.

    ``low`` and ``high`` are what outputs should be for other classes and for a pattern's own.
    """

    sizes: tuple[int, ...]
    activation: DenseActivation
    output: DenseOutput
    loss: DenseLoss
    low: float
    high: float

    def layers(self, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Weights ``(out, in)`` and biases ``(out,)`` of every layer, views of the flat vector.

        As `torch.nn.Linear` has them. The last layer is the widest as a rule: so no product reads it by
        columns that are a page apart, and what is transposed for gradients is the smaller matrix.
        """
        found, offset = [], 0
        for inputs, outputs in pairwise(self.sizes):
            end = offset + inputs * outputs
            found.append((flat[offset:end].view(outputs, inputs), flat[end : end + outputs]))
            offset = end + outputs
        return found
