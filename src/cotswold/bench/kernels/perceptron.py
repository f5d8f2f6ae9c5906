"""Fully connected layers: Bunyip's network, and the rate of a square product by its size.

Knows: the network with our operations and in plain PyTorch, FLOPs, bars. Does not know: time, processes.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from cotswold import ops
from cotswold.bench.effort import Effort
from cotswold.bench.kernels.baselines import AUTOGRAD, Action
from cotswold.bench.kernels.ceilings import dense_flops, dense_products, measure_with_dense_products
from cotswold.bench.kernels.shapes import Perceptron, dense_layer
from cotswold.bench.kernels.stacks import dense_row, peak_as_baseline
from cotswold.bench.measure import interleaved
from cotswold.bench.row import COTSWOLD, Comparison, Row, RowKey, compare_with_best_baseline, timed
from cotswold.nn import DenseNetwork

CEILING_BAR, DETERMINISTIC_BAR, AUTOGRAD_BAR = 0.85, 0.80, 1.0
DETERMINISTIC = "cotswold, deterministic"


def measured(network: Perceptron, effort: Effort) -> list[Row]:
    """Value and gradient of the summed squared error, compared with the dense product and with autograd.

    Once with the implementation that was measured to be fastest here, once with our own kernels only.
    """
    actions = {
        COTSWOLD: cotswold_gradient(network),
        DETERMINISTIC: cotswold_gradient(network, deterministic=True),
        AUTOGRAD: plain_gradient(network),
    }
    samples, dense, ceiling = measure_with_dense_products(actions, effort)
    ways = {"": (COTSWOLD, CEILING_BAR), ", deterministic": (DETERMINISTIC, DETERMINISTIC_BAR)}
    rows = []
    for suffix, (way, bar) in ways.items():
        place = RowKey("dense", network.name, f"value and gradient{suffix}", network.samples)
        pair = {COTSWOLD: samples[way], AUTOGRAD: samples[AUTOGRAD]}
        verdicts: list[Comparison] = [
            ceiling.compare(network.flops, samples[way], bar),
            *compare_with_best_baseline(pair, AUTOGRAD_BAR),
        ]
        together = {**pair, **peak_as_baseline(ceiling, network.flops)}
        rows.append(timed(place, network.flops, together, verdicts))
    return [*rows, dense_row(RowKey("dense", network.name, "dense product"), dense, effort)]


def cotswold_gradient(network: Perceptron, deterministic: bool = False) -> Action:
    """The network as `DenseNetwork` with classes; gradients of calls are accumulated."""
    ours = DenseNetwork((network.inputs, network.hidden, network.outputs), deterministic=deterministic)
    torch.manual_seed(0)
    x, classes = torch.randn(network.inputs, network.samples), _classes(network)
    flat, gradient = torch.empty(ours.size), torch.zeros(ours.size)
    views = ours.views(flat)
    for number, (inputs, outputs) in enumerate(pairwise(ours.sizes)):
        weights, biases = _parameters(inputs, outputs)
        views[f"{number}.weight"].copy_(weights.t())
        views[f"{number}.bias"].copy_(biases)
    found = ours.views(gradient)

    def act() -> tuple[Tensor, ...]:
        loss, _ = ours.add(flat, x, classes, gradient)
        return torch.tensor(loss), *found.values()

    return act


def plain_gradient(network: Perceptron) -> Action:
    """The same network and numbers in plain PyTorch, with every matrix contiguous."""
    torch.manual_seed(0)
    x = torch.randn(network.inputs, network.samples).t().contiguous()
    target = torch.full((network.samples, network.outputs), -1.0)
    target.scatter_(1, _classes(network)[:, None], 1.0)
    sizes = (network.inputs, network.hidden), (network.hidden, network.outputs)
    first, second = (nn.Linear(*size) for size in sizes)
    for layer, size in zip((first, second), sizes, strict=True):
        weights, biases = _parameters(*size)
        layer.load_state_dict({"weight": weights.t(), "bias": biases})
    model = nn.Sequential(first, nn.Tanh(), second, nn.Tanh())
    parameters = tuple(model.parameters())

    def act() -> tuple[Tensor, ...]:
        loss = functional.mse_loss(model(x), target, reduction="sum")
        return loss.detach(), *torch.autograd.grad(loss, parameters)

    return act


def _parameters(inputs: int, outputs: int) -> tuple[Tensor, Tensor]:
    """Weights ``(in, out)`` and biases of a layer, the same for every implementation."""
    drawn = torch.Generator().manual_seed(outputs)
    weights = torch.randn(inputs, outputs, generator=drawn) / inputs**0.5
    return weights, torch.randn(outputs, generator=drawn)


def _classes(network: Perceptron) -> Tensor:
    """The class of every sample; its output should be 1, all others -1."""
    return torch.arange(network.samples) * 31 % network.outputs


def curve(size: int, effort: Effort) -> list[Row]:
    """A square product by ours and by every library (Aberdeen et al. 2000, figure 4)."""
    layer = dense_layer(size, size)
    x = ops.images_last(torch.randn(size, size, 1, 1))
    filters = torch.randn(layer.filters_shape)
    actions = {COTSWOLD: lambda: ops.local_product(x, filters, layer), **dense_products(size)}
    samples = interleaved(actions, effort.rounds)
    place = RowKey("curve", f"{size} x {size}", "matrix product")
    work = dense_flops(size)
    return [timed(place, work, samples, compare_with_best_baseline(samples, None))]
