"""Fully connected layers: Bunyip's network, and the rate of a square product against its size.

Knows: how the network is written with ours and in plain PyTorch, FLOPs, bars. Does not know: time, processes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from cotswold import ops
from cotswold.bench.effort import Effort
from cotswold.bench.kernels.baselines import AUTOGRAD, Action
from cotswold.bench.kernels.ceilings import (
    ONEDNN,
    TORCH_MM,
    beside_dense,
    dense_flops,
    dense_products,
)
from cotswold.bench.kernels.shapes import Perceptron, dense_layer
from cotswold.bench.kernels.stacks import as_baseline, dense_row
from cotswold.bench.measure import Spread, interleaved
from cotswold.bench.row import OURS, Comparison, Row, RowKey, beside_best_baseline, timed

CEILING_BAR, AUTOGRAD_BAR = 0.85, 2.2
TWICE = 1.9
"""oneDNN is about twice as fast as torch.mm from here on; only there the second bar holds."""


def measured(network: Perceptron, effort: Effort) -> list[Row]:
    """Value and gradient of the summed squared error, beside the dense product and beside autograd."""
    actions = {OURS: our_gradient(network), AUTOGRAD: plain_gradient(network)}
    samples, dense, ceiling = beside_dense(actions, effort)
    medians = {name: Spread.of(seconds).median for name, seconds in dense.items()}
    twice = ONEDNN in medians and medians[TORCH_MM] >= TWICE * medians[ONEDNN]
    verdicts: list[Comparison] = [
        ceiling.reached(network.flops, samples[OURS], CEILING_BAR),
        *beside_best_baseline(samples, AUTOGRAD_BAR if twice else None),
    ]
    place = RowKey("dense", network.name, "value and gradient", network.patterns)
    together = {**samples, **as_baseline(ceiling, network.flops)}
    note = "" if twice else "oneDNN is not twice torch.mm here: no bar beside autograd"
    row = timed(place, network.flops, together, verdicts, note=note)
    return [row, dense_row(RowKey("dense", network.name, "dense product"), dense, effort)]


def our_gradient(network: Perceptron) -> Action:
    """The network by `fully_connected`; patterns are last in memory, so that nothing is transposed."""
    torch.manual_seed(0)
    x, target = torch.randn(network.inputs, network.patterns).t(), _targets(network).t()
    first, second = _parameters(network.inputs, network.hidden), _parameters(network.hidden, network.outputs)

    def act() -> tuple[Tensor, ...]:
        hidden = ops.fully_connected(x, *first, "tanh")
        output = ops.fully_connected(hidden, *second, "tanh")
        # not mse_loss, whose gradient is always laid out with the patterns first
        error = output.detach() - target
        columns = error.t().flatten()
        loss = torch.dot(columns, columns)
        return loss, *torch.autograd.grad(output, (*first, *second), error.mul_(2))

    return act


def plain_gradient(network: Perceptron) -> Action:
    """The same network and numbers in plain PyTorch, every matrix contiguous as it likes them."""
    torch.manual_seed(0)
    x, target = (
        torch.randn(network.inputs, network.patterns).t().contiguous(),
        _targets(network).t().contiguous(),
    )
    sizes = (network.inputs, network.hidden), (network.hidden, network.outputs)
    first, second = (nn.Linear(*size) for size in sizes)
    for layer, size in zip((first, second), sizes, strict=True):
        weights, biases = _parameters(*size)
        layer.load_state_dict({"weight": weights.detach().t(), "bias": biases.detach()})
    model = nn.Sequential(first, nn.Tanh(), second, nn.Tanh())
    parameters = tuple(model.parameters())

    def act() -> tuple[Tensor, ...]:
        loss = functional.mse_loss(model(x), target, reduction="sum")
        return loss.detach(), *torch.autograd.grad(loss, parameters)

    return act


def _parameters(inputs: int, outputs: int) -> tuple[Tensor, Tensor]:
    """Weights ``(in, out)`` and biases of a layer, the same for everybody."""
    drawn = torch.Generator().manual_seed(outputs)
    weights = torch.randn(inputs, outputs, generator=drawn) / inputs**0.5
    return weights.requires_grad_(), torch.randn(outputs, generator=drawn).requires_grad_()


def _targets(network: Perceptron) -> Tensor:
    return torch.rand(network.outputs, network.patterns).mul_(2).sub_(1)


def curve(size: int, effort: Effort) -> list[Row]:
    """A square product by us and by every library (Aberdeen et al. 2000, figure 4)."""
    layer = dense_layer(size, size)
    x = ops.images_last(torch.randn(size, size, 1, 1))
    filters = torch.randn(layer.filters_shape)
    actions = {OURS: lambda: ops.local_product(x, filters, layer), **dense_products(size)}
    samples = interleaved(actions, effort.rounds)
    place = RowKey("curve", f"{size} x {size}", "matrix product")
    work = dense_flops(size)
    return [timed(place, work, samples, beside_best_baseline(samples, None))]
