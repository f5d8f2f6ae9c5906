"""Specification of a fully connected network, without its parameters.

Knows: sizes, activations, losses, offsets of a layer's parameters in the flat vector. Does not know: how
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
    """A network's sizes, activations and loss.

    ``low`` and ``high`` are the target outputs for the wrong classes and for the sample's class.
    """

    sizes: tuple[int, ...]
    activation: DenseActivation
    output: DenseOutput
    loss: DenseLoss
    low: float
    high: float

    def layers(self, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Weights ``(out, in)`` and biases ``(out,)`` of every layer, as views of the flat vector.

        The layout is that of `torch.nn.Linear`. The last layer is usually the widest. With this layout no
        product reads it by columns a page apart, and gradients transpose the smaller matrix.
        """
        found, offset = [], 0
        for inputs, outputs in pairwise(self.sizes):
            end = offset + inputs * outputs
            found.append((flat[offset:end].view(outputs, inputs), flat[end : end + outputs]))
            offset = end + outputs
        return found
