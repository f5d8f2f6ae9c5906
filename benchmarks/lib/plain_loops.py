"""One training step of shipped recipes, by Cotswold and by the loop that a PyTorch user would write.

Knows: the networks of `faces`, `adam-mnist` and `bunyip-japanese-ocr` in plain torch. Does not know: time,
options.

Operands are random. Both steps of a case start with the same parameters, and their first losses must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from cotswold import ops
from cotswold.bench.kernels.baselines import Action
from cotswold.bench.kernels.perceptron import cotswold_gradient, plain_gradient
from cotswold.bench.kernels.shapes import Perceptron
from cotswold.geometry import StackGeometry
from cotswold.recipe import load
from cotswold.training.jobs.restore import supervised_network

RATE, MOMENTUM = 0.05, 0.9
PORTION = 320
CLASSES = 10

Step = Callable[[], Tensor]
"""Take a step; return its loss."""


@dataclass(frozen=True)
class Case:
    """Steps with the same work."""

    recipe: str
    name: str
    ours: Step
    plain: dict[str, Step]
    """Plain loops by layout; the fastest counts."""
    losses: tuple[float, float]
    """Losses of the same parameters on the same samples, ours and the plain one."""


def cases() -> Iterator[Case]:
    """Yield the cases of every recipe."""
    faces = load("faces", [])
    for number, geometry in enumerate(faces.stack_geometries()):
        objective = ops.StackObjective(faces.sparsity(number), faces.stack_objective.epsilon)
        yield stack(f"stack {number + 1}", geometry, objective, faces.training.batch_size)
    recipe = load("adam-mnist", [])
    torch.manual_seed(0)
    yield convolutions(recipe.name, supervised_network(recipe, CLASSES), recipe.training.batch_size)
    network = Perceptron(400, 480, 3203, PORTION)
    ours, plain = _loss_of(cotswold_gradient(network)), _loss_of(plain_gradient(network))
    name = f"value and gradient, {PORTION} samples"
    losses = float(ours()), float(plain())
    yield Case("bunyip-japanese-ocr", name, ours, {"samples first": plain}, losses)


def _loss_of(action: Action) -> Step:
    def step() -> Tensor:
        found = action()
        assert isinstance(found, tuple), "a loss and gradients"
        loss: Tensor = found[0]
        return loss

    return step


def stack(name: str, geometry: StackGeometry, objective: ops.StackObjective, images: int) -> Case:
    """A step of a stack without pooling; the plain loop unfolds the fields and multiplies by blocks."""
    assert geometry.pool.size == 1, "the plain loop has no pooling"
    layer, shape = geometry.filters, geometry.input
    filters = ops.random_filters(layer, 0, 0)
    torch.manual_seed(0)
    batch = ops.images_last(torch.randn(images, shape.channels, shape.height, shape.width))
    one = torch.ones((), dtype=torch.float64)
    state = ops.StackState(filters, ops.filter_norms(filters), torch.zeros_like(filters), one, one.clone())
    ops.calibrate(state, batch, geometry, objective)
    x = batch.contiguous() * float(state.gain)
    sizes, strides = (layer.y.size, layer.x.size), (layer.y.stride, layer.x.stride)
    padding, plane = (layer.y.pad_before, layer.x.pad_before), (shape.height, shape.width)
    # torch unfolds [channel][y][x]; the library's filters are [y][x][channel]
    parts = filters.view(*filters.shape[:3], layer.x.size, shape.channels, -1).permute(0, 1, 4, 2, 3, 5)
    weights = nn.Parameter(parts.reshape(-1, layer.fan_in, layer.neurons).clone())
    alpha = nn.Parameter(state.alpha.float().clone())
    optimiser = torch.optim.SGD([weights, alpha], RATE / layer.fan_in, MOMENTUM)

    def plain() -> Tensor:
        unit = weights / weights.norm(dim=1, keepdim=True)
        fields = functional.unfold(x, sizes, padding=padding, stride=strides).permute(2, 0, 1)
        responses = alpha * torch.bmm(fields, unit)
        back = torch.bmm(responses, unit.transpose(1, 2)).permute(1, 2, 0)
        decoded = functional.fold(back, plane, sizes, padding=padding, stride=strides)
        penalty = (responses.square() + objective.epsilon).sqrt().sum()
        loss = ((decoded - x).square().sum() + objective.sparsity * penalty) / images
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimiser.step()
        with torch.no_grad():
            weights.div_(weights.norm(dim=1, keepdim=True))
        return loss.detach()

    rule = ops.StepRule(rate=RATE)

    def ours() -> Tensor:
        return ops.stack_step(state, batch, geometry, objective, rule).loss

    return Case("faces", f"{name}, {images} images", ours, {"unfold": plain}, (float(ours()), float(plain())))


def convolutions(recipe: str, network: nn.Module, images: int) -> Case:
    """A step of Project Adam's network for MNIST: forward, backward, SGD with momentum."""
    x, classes = torch.randn(images, 1, 28, 28), torch.arange(images) % CLASSES
    plain = {"contiguous": _adam_mnist(), "channels last": _adam_mnist()}
    _ = plain["channels last"].to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub
    trained = {
        module.weight.shape: module.state_dict()
        for module in network.modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
    }
    for each in plain.values():
        for module in each.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.load_state_dict(trained[module.weight.shape])
    loops = {
        layout: _loop(each, x.to(memory_format=torch.channels_last) if "last" in layout else x, classes)
        for layout, each in plain.items()
    }
    losses = [
        float(functional.cross_entropy(each.eval()(x), classes).detach())
        for each in (network, plain["contiguous"])
    ]
    for each in (network, *plain.values()):
        each.train()
    return Case(recipe, f"a step, {images} images", _loop(network, x, classes), loops, (losses[0], losses[1]))


def _adam_mnist() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 10, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(), nn.Dropout(0.1)),
        *(nn.Conv2d(10, 20, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(), nn.Dropout(0.3)),
        *(nn.Flatten(), nn.Linear(980, 400), nn.ReLU(), nn.Dropout(0.5)),
        *(nn.Linear(400, 400), nn.ReLU(), nn.Dropout(0.5), nn.Linear(400, CLASSES)),
    )


def _loop(network: nn.Module, x: Tensor, classes: Tensor) -> Step:
    optimiser = torch.optim.SGD(network.parameters(), RATE / 10, MOMENTUM)

    def step() -> Tensor:
        loss = functional.cross_entropy(network(x), classes)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimiser.step()
        return loss.detach()

    return step
