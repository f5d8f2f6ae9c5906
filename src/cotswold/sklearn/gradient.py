"""Value and gradient of a fully connected network, without autograd.

Knows: torch's linear layers, activations, derivatives of three losses. Does not know: optimisation.

Autograd takes as long as the products of a small network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from cotswold.sklearn.samples import WeightedSamples, half_squared_error, logistic

Loss = Callable[[Tensor, Tensor], Tensor]


class NetworkGradient:
    """Value and gradient of a network's mean loss; memory is taken once for each number of samples.

    Args:
        network: Linear layers and activations of `network.ACTIVATIONS`; each parameter has its ``grad``.
        loss: The mean loss over samples.
    """

    def __init__(self, network: nn.Sequential, loss: Loss) -> None:
        self._linear = [layer for layer in network if isinstance(layer, nn.Linear)]
        self._activations = list(network)[1::2]
        self._loss_gradient = _SLOPES.get(loss) or partial(_by_autograd, loss)
        self._memory: dict[int, list[tuple[Tensor, Tensor]]] = {}

    @torch.no_grad()
    def add(self, samples: WeightedSamples, share: float) -> Tensor:
        """Return ``share`` times the loss, and add its gradient to the ``grad`` of the parameters.

        Args:
            samples: Samples to compute.
            share: Factor of the loss.
        """
        outputs = self._outputs(samples.inputs)
        value, delta = self._loss_gradient(outputs[-1][0], samples.targets)
        delta = delta.mul_(share)
        for number in reversed(range(len(outputs))):
            layer, given = self._linear[number], outputs[number - 1][0] if number else samples.inputs
            assert layer.weight.grad is not None and layer.bias.grad is not None
            layer.weight.grad.addmm_(delta.t(), given)
            layer.bias.grad.add_(delta.sum(0))
            if number:
                delta = torch.mm(delta, layer.weight, out=outputs[number - 1][1])
                _activation_gradient(self._activations[number - 1], delta, given)
        return value * share

    def _outputs(self, inputs: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Compute the output of every layer, after its activation; return them with memory of their shape."""
        if len(inputs) not in self._memory:
            shapes = [(len(inputs), layer.out_features) for layer in self._linear]
            self._memory[len(inputs)] = [(inputs.new_empty(s), inputs.new_empty(s)) for s in shapes]
        found = self._memory[len(inputs)]
        for number, (layer, (out, _)) in enumerate(zip(self._linear, found, strict=True)):
            given = found[number - 1][0] if number else inputs
            torch.addmm(layer.bias, given, layer.weight.t(), out=out)
            if number < len(self._activations):
                match self._activations[number]:
                    case nn.ReLU():
                        out.relu_()
                    case nn.Tanh():
                        out.tanh_()
                    case nn.Sigmoid():
                        out.sigmoid_()
        return found


def _activation_gradient(layer: nn.Module, delta: Tensor, out: Tensor) -> None:
    """Multiply a gradient by the slope of an activation, by its output."""
    match layer:
        case nn.ReLU():
            torch.ops.aten.threshold_backward.grad_input(delta, out, 0.0, grad_input=delta)
        case nn.Tanh():
            torch.ops.aten.tanh_backward.grad_input(delta, out, grad_input=delta)
        case nn.Sigmoid():
            torch.ops.aten.sigmoid_backward.grad_input(delta, out, grad_input=delta)


def _by_autograd(loss: Loss, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        value = loss(leaf, targets)
        return value.detach(), torch.autograd.grad(value, leaf)[0]


def _of_logistic(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    slope = torch.sigmoid(outputs[:, 0]).sub_(targets).div_(len(outputs))
    return logistic(outputs, targets), slope.unsqueeze(1)


def _of_cross_entropy(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    logarithms = functional.log_softmax(outputs, 1)
    value = functional.nll_loss(logarithms, targets)
    slope = logarithms.exp_()
    slope[torch.arange(len(slope)), targets] -= 1.0
    return value, slope.div_(len(slope))


def _of_half_squared_error(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    errors = outputs - targets
    return 0.5 * errors.square().mean(), errors.div_(errors.numel())


_SLOPES: Mapping[Loss, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    logistic: _of_logistic,
    functional.cross_entropy: _of_cross_entropy,
    half_squared_error: _of_half_squared_error,
}
"""Value and slope of the losses without sample weights."""
