"""Ranks keep little more for the backward pass than their parts of what one process keeps."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from tests.support.mesh.compared import apart, tensor
from tests.support.mesh.convolutional_networks import DeepLab, resnet18
from tests.support.mesh.foreign_modules import Between
from tests.support.mesh.ranks import on_ranks
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from cotswold.geometry import Box, Grid
from cotswold.mesh import DistributedMap, SpatialLayer, partition
from cotswold.mesh.maps.kept import kept_as_parts, window_boxes
from cotswold.mesh.modules.parameters import local_part
from cotswold.nn import L2Pool2d, LocalContrastNorm2d, LocallyConnected2d


def _chain(layer: Callable[[], nn.Module], count: int = 6) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 1), *(each for _ in range(count) for each in (nn.Tanh(), layer())))


def _shuffled(_: nn.Module, x: Any) -> Any:
    return x.view(x.shape[0], 2, 2, *x.shape[2:]).transpose(1, 2).reshape(x.shape)


class Resized(nn.Module):
    """An interpolation between convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(F.interpolate(self.first(x), scale_factor=2, mode="bilinear"))
        return out.tanh()


class Blurred(SpatialLayer):
    """A product of a window with a view of the same window, both of which autograd keeps."""

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        return height, width

    def input_box(self, output: Box) -> Box:
        (top, left), (bottom, right) = output.start, output.stop
        return Box((top - 1, left - 1), (bottom + 1, right + 1))

    def forward_window(self, window: Tensor, output: Box) -> Tensor:
        turned = window.transpose(2, 3)
        return F.max_pool2d(window, 3, 1) * turned[:, :, 1:-1, 1:-1].transpose(2, 3)


class Changed(Blurred):
    """The same after a change of the window in place."""

    def forward_window(self, window: Tensor, output: Box) -> Tensor:
        return super().forward_window(window.sub_(0.5), output)


class Overwritten(Blurred):
    """A change in place of a result that the backward pass needs."""

    def forward_window(self, window: Tensor, output: Box) -> Tensor:
        return super().forward_window(window, output).sigmoid().mul_(2)


class Sampled(nn.Module):
    """A map sampled at places that move away from a grid."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).tanh()
        turn = torch.tensor([[[0.95, 0.02, 0.01], [0.0, 0.97, 0.0]]], dtype=x.dtype)
        return F.grid_sample(x, F.affine_grid(turn, [1, *x.shape[1:]], align_corners=False))


class Recomputed(nn.Module):
    """Convolutions that are computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        pairs = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.Tanh()) for _ in range(4)]
        self.first, self.rest = nn.Conv2d(3, 8, 1), nn.Sequential(*pairs, nn.MaxPool2d(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.rest, self.first(x).tanh(), use_reentrant=False)
        return out


def _local() -> nn.Module:
    layers = (LocallyConnected2d(8, 8, (32, 32), 3, padding=1) for _ in range(3))
    smooth = L2Pool2d(3, padding="same"), LocalContrastNorm2d(3, padding="same")
    return nn.Sequential(nn.Conv2d(3, 8, 1), *(each for one in layers for each in (nn.Tanh(), one)), *smooth)


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], float]] = {
    "convolutions": (lambda: _chain(lambda: nn.Conv2d(8, 8, 3, padding=1)), (1, 3, 64, 64), 0.58),
    "padded on one side": (
        lambda: _chain(lambda: nn.Sequential(nn.ZeroPad2d((2, 0, 0, 2)), nn.Conv2d(8, 8, 3))),
        (1, 3, 64, 64),
        0.58,
    ),
    "reflected": (
        lambda: _chain(lambda: nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect")),
        (1, 3, 64, 64),
        0.58,
    ),
    "strides": (lambda: _chain(lambda: nn.Conv2d(8, 8, 5, 2, 2), 3), (1, 3, 128, 128), 0.58),
    "transposed convolutions": (
        lambda: _chain(lambda: nn.ConvTranspose2d(8, 8, 3, padding=1)),
        (1, 3, 64, 64),
        0.58,
    ),
    "depthwise convolutions": (
        lambda: _chain(lambda: nn.Conv2d(8, 8, 7, padding=3, groups=8)),
        (1, 3, 64, 64),
        0.60,
    ),
    "batch norm": (
        lambda: _chain(lambda: nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8))),
        (2, 3, 64, 64),
        0.56,
    ),
    "group norm": (
        lambda: _chain(lambda: nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8))),
        (2, 3, 64, 64),
        0.56,
    ),
    "maxima": (lambda: _chain(lambda: nn.MaxPool2d(3, 1, 1)), (1, 3, 64, 64), 0.56),
    "means": (lambda: _chain(lambda: nn.AvgPool2d(3, 1, 1)), (1, 3, 64, 64), 0.58),
    "an interpolation": (Resized, (1, 3, 64, 64), 0.58),
    "places": (Sampled, (1, 3, 64, 64), 0.70),
    "a layer of a user": (lambda: _chain(Blurred), (1, 3, 64, 64), 0.45),
    "local layers": (_local, (8, 3, 32, 32), 0.58),
    "computed again": (Recomputed, (1, 3, 64, 64), 0.55),
    "ResNet-18": (lambda: resnet18(16), (1, 3, 160, 160), 0.55),
    "DeepLab": (lambda: DeepLab(4), (2, 3, 129, 129), 0.75),
    "a mask": (lambda: nn.Sequential(nn.Conv2d(4, 16, 1), nn.Dropout(0.3)), (1, 4, 48, 48), 0.7),
    "a window of the whole map": (
        lambda: nn.Sequential(nn.Conv2d(4, 16, 1), nn.Conv2d(16, 16, 3, padding=24, dilation=24)),
        (1, 4, 12, 12),
        1.1,
    ),
    "a view": (lambda: Between(_shuffled), (1, 4, 40, 40), 0.8),
}
"""Modules, the shapes of their batches, and the fraction of one process's bytes that a rank may keep."""


def _kept(module: nn.Module, x: Tensor) -> int:
    """Return the bytes that autograd keeps for the backward pass, without parameters and the batch."""
    held = {local_part(values).untyped_storage().data_ptr() for values in (x, *module.parameters())}
    found: dict[int, int] = {}

    def pack(values: Tensor) -> Tensor:
        part = values.local if isinstance(values, DistributedMap) else values  # of what a checkpoint keeps
        storage = part.untyped_storage()
        if storage.data_ptr() not in held:
            found[storage.data_ptr()] = storage.nbytes()
        return values

    with saved_tensors_hooks(pack, lambda values: values):
        out = module(x)
    return sum(found.values()) if out.requires_grad else 0


def _fractions() -> dict[str, float]:
    found = {}
    for name, (make, shape, _) in MODULES.items():
        torch.manual_seed(0)
        module, x = make(), torch.rand(shape)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found[name] = _kept(partition(module, "1x2"), x) / _kept(module, x)
    return found


@cache
def fractions() -> list[dict[str, float]]:
    found: list[dict[str, float]] = on_ranks(2, _fractions)
    return found


@pytest.mark.parametrize("name", MODULES)
def test_a_rank_keeps_its_part_and_little_of_the_others_parts(name: str) -> None:
    assert all(0.3 < found[name] < MODULES[name][2] for found in fractions())


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "convolution": lambda: nn.Conv2d(8, 8, 3, padding=1),
    "convolution of few inner outputs": lambda: nn.Conv2d(8, 8, 7, padding=3),
    "padding on one side": lambda: nn.Sequential(nn.ZeroPad2d((2, 0, 0, 2)), nn.Conv2d(8, 8, 3)),
    "transposed convolution": lambda: nn.ConvTranspose2d(8, 8, 3, padding=1),
    "means": lambda: nn.AvgPool2d(3, 1, 1),
    "maxima": lambda: nn.MaxPool2d(3, 1, 1),
    "group norm": lambda: nn.GroupNorm(2, 8),
    "instance norm": lambda: nn.InstanceNorm2d(8),
    "a layer of a user": Blurred,
    "a layer that changes its window": Changed,
    "local layer": lambda: LocallyConnected2d(8, 8, (12, 10), 3, padding=1),
    "smoothing": lambda: L2Pool2d(3, padding="same"),
}


def _differentiated(module: nn.Module, x: Tensor) -> list[Tensor]:
    """Return gradients, and gradients of those, each computed twice, while all saved tensors are copies."""
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    parameters = [one for one in module.parameters() if one.requires_grad]
    found: list[Any] = []
    with save_on_cpu():
        out = module(x)
        loss = (out.full_tensor() if hasattr(out, "full_tensor") else out).square().mean()
        for again in (True, False):
            first = torch.autograd.grad(loss, x, create_graph=True)[0]
            found += [first, *torch.autograd.grad(loss, parameters, retain_graph=True)]
            found += torch.autograd.grad(first.square().sum(), [x, *parameters], retain_graph=again)
    return [(one.full_tensor() if hasattr(one, "full_tensor") else one).detach() for one in found]


def _differences(grid: str) -> dict[str, float]:
    found = {}
    for name, layer in LAYERS.items():
        for order in (torch.contiguous_format, torch.channels_last):
            torch.manual_seed(0)
            module = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Tanh(), layer(), nn.Tanh(), layer()).double()
            x = tensor(1, 2, 3, 12, 10).to(memory_format=order)
            pairs = zip(_differentiated(partition(module, grid), x), _differentiated(module, x), strict=True)
            found[f"{name}, {order}"] = max(apart(*pair) for pair in pairs)
    return found


@pytest.mark.parametrize("grid", ["1x2", "2x2", "3x2"])
def test_gradients_of_any_order_are_those_of_one_process_beside_hooks_of_the_user(grid: str) -> None:
    for found in on_ranks(Grid.parse(grid).size, _differences, grid):
        assert max(found.values()) < 1e-10, found


def _words_of_changes() -> list[str]:
    """Return the errors of backward passes after a change of the map that an operation has kept."""
    found = []
    for name in ("convolution", "maxima", "a layer of a user"):
        net = partition(nn.Sequential(nn.Conv2d(3, 8, 1), LAYERS[name]()), "1x2")
        inner: list[Any] = []
        net[1].register_forward_pre_hook(lambda _, given, inner=inner: inner.append(given[0]))
        out = net(torch.rand(1, 3, 12, 10))
        with torch.no_grad():
            inner[0].local.mul_(2)
        try:
            out.full_tensor().sum().backward()
            found.append("no error")
        except RuntimeError as error:
            found.append(str(error))
    return found


def test_a_change_of_a_map_that_the_backward_pass_needs_is_an_error_as_in_one_process() -> None:
    for words in on_ranks(2, _words_of_changes):
        assert all("modified by an inplace operation" in each for each in words), words


def _words_of_overwritten() -> tuple[str, str]:
    """Return the errors of backward passes of a layer that changes a saved result, plain and on a grid."""
    found = []
    net = nn.Sequential(nn.Conv2d(3, 8, 1), Overwritten())
    for each in (net, partition(net, "1x2")):
        out = each(torch.rand(1, 3, 12, 10))
        with pytest.raises(RuntimeError) as caught:
            torch.autograd.backward([out.sum()])
        found.append(str(caught.value))
    return found[0], found[1]


def test_a_layer_that_changes_a_saved_result_is_an_error_as_in_one_process() -> None:
    for plain, on_grid in on_ranks(2, _words_of_overwritten):
        assert "modified by an inplace operation" in plain
        assert "modified by an inplace operation of a layer on a grid of ranks" in on_grid


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": lambda x: x.sigmoid().mul_(2),
    "exp": lambda x: x.exp().add_(1),
    "softmax": lambda x: x.softmax(1).div_(3),
    "square root": lambda x: (x + 1).sqrt().clamp_(0.5, 1.2),
    "tanh": lambda x: F.max_pool2d(x, 3, 1).tanh_().mul_(0.5),
}


def _gradient(change: Callable[[Tensor], Tensor], is_inside: bool) -> Tensor:
    """Return a window's gradient, which is computed within the layer or after it."""
    part = torch.rand(1, 2, 6, 6)
    window, box = F.pad(part, (0, 1)).requires_grad_(), Box((0, 0), (6, 7))
    with kept_as_parts(window_boxes(Box((0, 0), (6, 6)), box), part, (window, box)):
        total = change(window).sum()
        if is_inside:
            return torch.autograd.grad(total, window)[0]
    return torch.autograd.grad(total, window)[0]


@pytest.mark.parametrize("is_inside", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_a_saved_result_is_an_error_also_within_the_layer(name: str, is_inside: bool) -> None:
    with pytest.raises(RuntimeError, match="modified by an inplace operation of a layer"):
        _gradient(CHANGES[name], is_inside)
