"""Fully connected networks of torch's layers.

Knows: sizes, activations, initial weights. Does not know: scikit-learn, training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "identity": nn.Identity,
    "logistic": nn.Sigmoid,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
}
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def make_network(
    sizes: Sequence[int], activation: str, dtype: torch.dtype, random: np.random.RandomState
) -> nn.Sequential:
    """Return a network with the initial weights of `MLPClassifier` for the same ``random``.

    They are uniform, after Glorot and Bengio 2010.

    Args:
        sizes: Units of each layer: inputs, hidden layers, outputs.
        activation: Activation of the hidden layers.
        dtype: Dtype of the weights.
        random: Draws the weights.
    """
    layers: list[nn.Module] = []
    gain = 2.0 if activation == "logistic" else 6.0
    for inputs, outputs in pairwise(sizes):
        linear = nn.Linear(inputs, outputs, device="meta", dtype=dtype).to_empty(device="cpu")
        bound = sqrt(gain / (inputs + outputs))
        weight = random.uniform(-bound, bound, (inputs, outputs))  # in the order of `MLPClassifier`
        bias = random.uniform(-bound, bound, outputs)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(weight).t())
            linear.bias.copy_(torch.from_numpy(bias))
        layers += [linear, ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])


class PenalisedNetwork(nn.Sequential):
    """A network that also returns the penalty of its weights, biases excluded.

    The last column of its inputs is the factor of the penalty: 0 for validation samples. So any process that
    computes outputs computes the penalty, too.
    """

    def forward(self, input: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs ``(sample, output)`` and penalties ``(sample,)``.

        Args:
            input: ``(sample, feature + 1)``.
        """
        squares = torch.stack([weight.square().sum() for weight in weight_matrices(self)]).sum()
        outputs: Tensor = super().forward(input[:, :-1])  # type: ignore[no-untyped-call]  # as torch left it
        return outputs, 0.5 * squares * input[:, -1]


@dataclass(frozen=True)
class PenalisedLoss:
    """The mean loss over samples, and the mean of the penalties."""

    loss: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, output: Any, target: Tensor) -> Tensor:
        """Return the sum of both; ``output`` is that of a `PenalisedNetwork`."""
        found: Tensor = self.loss(output[0], target) + output[1].mean()
        return found


def weight_matrices(network: nn.Module) -> list[Tensor]:
    """Return the parameters that `MLPClassifier` penalises: all but the biases."""
    return [each for each in network.parameters() if each.dim() > 1]


@torch.inference_mode()
def outputs_of(network: nn.Module, inputs: Tensor, rows: int) -> Tensor:
    """Return the outputs of a network, computed for ``rows`` samples at a time."""
    return torch.cat([network(part) for part in torch.split(inputs, rows)])
