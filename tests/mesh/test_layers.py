"""Layers over ranks: custom layers, local layers to the bit, maps as inputs and outputs, refusals."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from tests.support.mesh.ranks import on_ranks
from torch import Tensor, nn
from torch.nn import functional as F

from cotswold.errors import GeometryError, UserError
from cotswold.geometry import Box, Grid, Partition
from cotswold.kernels import available
from cotswold.mesh import DistributedMap, Mesh, SpatialLayer, local_map, partition
from cotswold.mesh.maps.exchange import Exchange
from cotswold.nn import (
    L2Pool2d,
    LocalContrastNorm2d,
    LocallyConnected1d,
    LocallyConnected2d,
    LocallyConnected3d,
)

GRIDS = ("1x2", "2x2", "1x3", "3x2")


class Dilation(SpatialLayer):
    """The greyscale dilation of morphology, with a learnt element, and a gain for every 2 x 3 pixels."""

    sharded: Mapping[str, tuple[int, int]] = MappingProxyType({"gain": (1, 2)})

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.element = nn.Parameter(torch.randn(9))
        self.gain = nn.Parameter(torch.randn(1, height // 2, width // 3))

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        return height, width

    def input_box(self, output: Box) -> Box:
        (top, left), (bottom, right) = output.start, output.stop
        return Box((top - 1, left - 1), (bottom + 1, right + 1))

    def forward_window(self, window: Tensor, output: Box) -> Tensor:
        seen = F.unfold(window, 3).view(*window.shape[:2], 9, *output.shape)
        gain = self.gain.repeat_interleave(2, 1).repeat_interleave(3, 2)
        out: Tensor = (seen + self.element[:, None, None]).amax(2) * gain
        return out


def _own_layer(grid: str) -> list[float]:
    torch.manual_seed(2)
    module = nn.Sequential(nn.Conv2d(1, 3, 2), Dilation(10, 6), nn.Conv2d(3, 1, 3)).double()
    partitioned = partition(module, grid)
    x = torch.randn(2, 1, 11, 7, dtype=torch.float64)
    found = []
    for one in (module, partitioned):
        (one(x) ** 2).sum().backward()
        found.append([values.grad for values in one.parameters()])
    return [(a - b.full_tensor()).abs().max().item() for a, b in zip(*found, strict=True)]


@pytest.mark.parametrize("grid", GRIDS)
def test_a_layer_of_ones_own_has_the_gradients_of_one_process(grid: str) -> None:
    for differences in on_ranks(Grid.parse(grid).size, _own_layer, grid):
        assert max(differences) < 1e-11


LOCAL: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: LocallyConnected2d(3, 4, (17, 13), 5),
    "padding and stride": lambda: LocallyConnected2d(3, 4, (17, 13), 4, stride=2, padding=2),
    "blocks": lambda: LocallyConnected2d(3, 2, (17, 13), 6, stride=3, padding=1, block=(2, 3), bias=False),
    "fewer blocks than ranks": lambda: LocallyConnected2d(3, 4, (17, 13), (15, 12), stride=2, padding=1),
    "pooling": lambda: L2Pool2d(4),
    "pooling that keeps the map": lambda: L2Pool2d(4, padding="same"),
    "normalisation": lambda: LocalContrastNorm2d(5),
    "normalisation that keeps the map": lambda: LocalContrastNorm2d(5, padding="same"),
}


def _same_bits(name: str, grid: str) -> bool:
    torch.manual_seed(4)
    module = LOCAL[name]()
    x = torch.randn(6, 3, 17, 13)
    return torch.equal(partition(module, grid)(x).full_tensor(), module(x))


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", LOCAL)
def test_local_layers_have_the_bits_of_one_process(name: str, grid: str) -> None:
    assert all(on_ranks(Grid.parse(grid).size, _same_bits, name, grid))


def _own_windows() -> tuple[bool, list[int]]:
    torch.manual_seed(4)
    module = nn.Conv2d(2, 3, 3, padding=1)
    x = torch.randn(2, 2, 9, 8)
    partitioned = partition(module, "2x2")
    mesh: Mesh = Mesh.of("2x2")
    cut = Partition.even((9, 8), mesh.grid)
    reach = tuple(
        Box(tuple(at - 1 for at in box.start), tuple(at + 1 for at in box.stop)).intersect(Box.whole((9, 8)))
        for box in cut.boxes
    )
    rows, columns = reach[mesh.rank].slices
    parts = DistributedMap(x[:, :, *cut.box(mesh.rank).slices], cut, mesh)
    windows = local_map(x[:, :, rows, columns], mesh, cut, reach)
    same, exchanges = True, []
    for one in (parts, windows, x):
        with patch.object(Exchange, "start", autospec=True, side_effect=Exchange.start) as starts:
            same = same and torch.allclose(partitioned(one).full_tensor(), module(x), atol=1e-6)
        exchanges.append(starts.call_count)
    return same, exchanges


def test_a_partitioned_module_takes_whole_batches_parts_of_maps_and_windows_of_ranks() -> None:
    assert all(same for same, _ in on_ranks(4, _own_windows))


def test_pixels_that_ranks_have_are_not_sent() -> None:
    assert on_ranks(4, _own_windows)[0][1] == [1, 0, 0]


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "an LSTM": (lambda: nn.LSTM(3, 4), "LSTM is recurrent"),
    "a GRU": (lambda: nn.Sequential(nn.GRU(3, 4)), "GRU '0' is recurrent"),
    "an RNN": (lambda: nn.RNN(3, 4), "RNN is recurrent"),
    "a cell of a GRU": (lambda: nn.GRUCell(3, 4), "GRUCell is recurrent"),
    "local layers of one axis": (lambda: LocallyConnected1d(1, 1, 9, 3), "LocallyConnected1d"),
    "local layers of three axes": (lambda: LocallyConnected3d(1, 1, 5, 3), "LocallyConnected3d"),
    "lazy modules": (lambda: nn.LazyConv2d(1, 3), "no weights yet"),
    "parametrizations": (
        lambda: torch.nn.utils.parametrizations.weight_norm(LocallyConnected2d(1, 1, (9, 9), 3)),
        "LocallyConnected2d has parametrizations",
    ),
    "parametrizations without values": (
        lambda: torch.nn.utils.parametrizations.weight_norm(nn.Conv2d(1, 1, 3, device="meta")),
        "Conv2d has parametrizations",
    ),
    "shared weights": (lambda: _sharing(), "1.weight and 0.weight are one parameter"),
    "hooks": (lambda: _hooked(), "hooks"),
    "modules in a list": (lambda: _Keeping(lambda own: [own.conv]), "'kept'"),
    "modules in a dictionary": (lambda: _Keeping(lambda own: {"a": (own.conv,)}), "'kept'"),
    "methods": (lambda: _Keeping(lambda own: own.conv.forward), "'kept'"),
    "functions that hold a module": (lambda: _Keeping(lambda own: lambda x: own.conv(x)), "'kept'"),
}


class _Keeping(nn.Module):
    def __init__(self, kept: Callable[[Any], Any]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3)
        self.kept = kept(self)


def _sharing() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    return module


def _hooked() -> nn.Module:
    module = nn.Conv2d(1, 1, 3)
    module.register_forward_hook(lambda *_: None)
    return module


def _words(name: str) -> str:
    with pytest.raises(UserError) as refused:
        partition(REFUSED[name][0](), "1x1")
    return str(refused.value)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_split_is_refused_by_name(name: str) -> None:
    assert REFUSED[name][1] in on_ranks(1, _words, name)[0]


class _Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, int] = {}

    def forward(self, x: Tensor) -> Tensor:
        self.seen["called"] = 1
        return x


def _separate() -> tuple[int, int, dict[str, int]]:
    module = _Counting()
    partitioned = partition(module, "1x1")
    partitioned.register_forward_hook(lambda *_: None)
    partitioned.register_buffer("passing", torch.zeros(1), persistent=False)
    partitioned(torch.rand(1, 1, 4, 4))
    return len(module._forward_hooks), len(module._non_persistent_buffers_set), module.seen


def test_what_is_registered_on_a_partitioned_module_is_not_on_its_module() -> None:
    assert on_ranks(1, _separate) == [(0, 0, {})]


class _Failing(SpatialLayer):
    def output_size(self, height: int, width: int) -> tuple[int, int]:
        return height, width

    def input_box(self, output: Box) -> Box:
        return output

    def forward_window(self, window: Tensor, output: Box) -> Tensor:
        if output.start[1] and window.shape[1] > 1:
            raise ValueError("not here")
        return window


class _Bright(_Failing):
    """A layer that returns whole numbers, in a type that few layers return."""

    def forward_window(self, window: Tensor, output: Box) -> Tensor:
        return (window > 0.5).to(torch.uint8)


def _of_small_numbers(grid: str) -> bool:
    module = _Bright()
    partitioned, x = partition(module, grid), torch.rand(2, 1, 1, 1)
    return torch.equal(partitioned(x).full_tensor(), module(x))


@pytest.mark.parametrize("grid", ["1x2", "2x1", "2x2"])
def test_outputs_may_have_any_type_where_ranks_have_none(grid: str) -> None:
    assert all(on_ranks(Grid.parse(grid).size, _of_small_numbers, grid))


class _Misspelt(_Failing):
    sharded: Mapping[str, tuple[int, int]] = MappingProxyType({"gane": (1, 2)})

    def __init__(self) -> None:
        super().__init__()
        self.gain = torch.nn.Parameter(torch.ones(4, 4))


def test_a_name_in_sharded_that_is_no_parameter_is_told() -> None:
    with pytest.raises(GeometryError, match=r"sharded names gane, .* it has gain"):
        partition(_Misspelt(), "1x1")


def _words_of_failure(before: int) -> str:
    partitioned = partition(_Failing(), "1x2")
    for _ in range(before):
        partitioned(torch.rand(1, 1, 4, 4))
    with pytest.raises((ValueError, GeometryError)) as raised:
        partitioned(torch.rand(1, 2, 4, 4))
    return str(raised.value)


@pytest.mark.parametrize("before", [0, 1])
def test_a_layer_that_fails_on_one_rank_fails_on_all(before: int) -> None:
    said = ["1 of 2 ranks cannot continue; see their errors", "not here"]
    assert on_ranks(2, _words_of_failure, before) == said


CALLS: dict[str, Callable[[Any], Any]] = {
    "softmax": F.softmax,
    "mse_loss": lambda x: F.mse_loss(x, x, reduce=False),
    "interpolate": F.interpolate,
    "add_": lambda x: torch.zeros(1, 1, 4, 4).add_(x),
    "out=": lambda x: torch.add(x, x, out=torch.zeros(1)),
    "channels": lambda x: F.pad(x, (0, 0, 0, 0, 0, 0, 0, 1)),
}


def _words_of_calls() -> dict[str, str]:
    x = DistributedMap.of(torch.rand(1, 1, 4, 4), Mesh.of("1x2"))
    found = {}
    for name, call in CALLS.items():
        try:
            call(x)
        except UserError as refused:
            found[name] = str(refused)
    return found


def test_calls_that_no_rule_takes_are_refused_by_name() -> None:
    found = on_ranks(2, _words_of_calls)[1]
    assert found.keys() == CALLS.keys()
    assert all(name.rstrip("_") in words for name, words in found.items())


def _parts_of_nothing() -> tuple[int, ...]:
    mesh, cut = Mesh.of("1x3"), Partition((0, 4), (0, 3, 5, 5))
    reach = (Box((0, 0), (4, 3)), Box((0, 3), (4, 5)), Box((0, 0), (0, 0)))
    window = torch.rand(2, 3, *reach[mesh.rank].shape, requires_grad=True)
    part = local_map(window, mesh, cut, reach).local
    part.sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    assert window.grad is not None
    return tuple(part.shape)


def test_a_rank_without_pixels_has_an_empty_part_of_its_box() -> None:
    assert on_ranks(3, _parts_of_nothing)[2] == (2, 3, 4, 0)


class _Triangles(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu_()


def _words_of_call() -> str:
    partitioned = partition(_Triangles(), "1x2")
    with pytest.raises(UserError) as refused:
        partitioned(torch.rand(1, 1, 4, 4))
    return str(refused.value)


def test_a_function_in_place_without_a_rule_is_refused_by_name() -> None:
    assert all(words.startswith("triu in place ") for words in on_ranks(2, _words_of_call))


def _with_buffer() -> nn.Module:
    module = nn.ReLU()
    module.register_buffer("mask", torch.rand(3).log() - torch.tensor([torch.inf, 0, 0]))
    return module


STRANGERS: dict[str, Callable[[], nn.Module]] = {
    "parameters": lambda: nn.Linear(3, 4),
    "buffers": _with_buffer,
    "masks to be drawn": lambda: nn.Dropout(0.5),
    "values to be drawn": lambda: nn.Conv2d(1, 1, 3, device="meta"),
}


def _words_of_strangers(name: str, seed_of_all: int | None) -> str | None:
    torch.manual_seed(torch.distributed.get_rank() if seed_of_all is None else seed_of_all)
    try:
        partition(STRANGERS[name](), "1x2")
    except UserError as refused:
        return str(refused)
    return None


@pytest.mark.parametrize("name", STRANGERS)
def test_modules_that_differ_between_ranks_are_refused_on_all_of_them(name: str) -> None:
    assert on_ranks(2, _words_of_strangers, name, 3) == [None, None]
    assert all("torch.manual_seed" in words for words in on_ranks(2, _words_of_strangers, name, None))


def _second_derivatives(grid: str) -> float:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1, bias=False),
        nn.BatchNorm2d(2),
        nn.Sigmoid(),
        nn.Conv2d(2, 2, 3),
        nn.AvgPool2d(2),
        nn.Conv2d(2, 2, 1),
    ).double()
    return _twice(module, grid)


def _twice(module: nn.Module, grid: str) -> float:
    """Return the largest difference between the second derivatives of a partitioned module and of
    its module.
    """
    partitioned = partition(module, grid)
    found: list[list[Any]] = []
    for one in (module, partitioned):
        x = torch.randn(2, 1, 4, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        x.requires_grad_()
        (grad,) = torch.autograd.grad((one(x) ** 2).sum(), x, create_graph=True)
        (grad**2).sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        found.append([values.grad for values in one.parameters()])
    pairs = [(a, b.full_tensor()) for a, b in zip(*found, strict=True) if a is not None]
    return _furthest([a for a, _ in pairs], [b for _, b in pairs])


class Offset(SpatialLayer):
    """Pixels plus an offset that their gradient does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.ones(2, 1, 1))

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        return height, width

    def input_box(self, output: Box) -> Box:
        return output

    def forward_window(self, window: Tensor, output: Box) -> Tensor:
        return window + self.offset


def _second_derivatives_of_blocks(grid: str) -> float:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), LocallyConnected2d(2, 2, (4, 12), (3, 11)), Offset()
    ).double()
    return _twice(module, grid)


@pytest.mark.parametrize("grid", ["1x2", "1x3", "3x2"])  # ranks of the last two have no blocks
def test_partitioned_modules_of_local_layers_are_differentiable_twice_where_ranks_have_none(
    grid: str,
) -> None:
    assert max(on_ranks(Grid.parse(grid).size, _second_derivatives_of_blocks, grid)) < 1e-10


def _furthest(wanted: list[Any], got: list[Any]) -> float:
    """Return the largest difference, relative to the largest value."""
    pairs = zip(got, wanted, strict=True)
    return max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-30)) for a, b in pairs)


@pytest.mark.parametrize("grid", GRIDS)
def test_partitioned_modules_of_convolutions_are_differentiable_twice(grid: str) -> None:
    assert max(on_ranks(Grid.parse(grid).size, _second_derivatives, grid)) < 1e-10


def _where_one_has_no_kernels(grid: str) -> float:
    """Return the difference of a layer's gradients from those of one process, with torch's code on rank 1."""
    torch.manual_seed(0)
    layer, x = LocallyConnected2d(2, 4, (9, 8), 3, padding=1), torch.rand(3, 2, 9, 8)
    layer(x).square().sum().backward()
    if dist.get_rank() == 1:
        os.environ[available.VARIABLE] = "torch"
    try:
        partitioned: Any = partition(layer, grid)
        for _ in range(2):
            partitioned.zero_grad()
            partitioned(_part_of(x, grid)).square().sum().backward()
    finally:
        os.environ.pop(available.VARIABLE, None)
    return float((partitioned.weight.grad.full_tensor() - layer.weight.grad).abs().max())


def _part_of(x: Tensor, grid: str) -> DistributedMap:
    """Return a map of which each rank has only its part."""
    parts = Partition.even((9, 8), Grid.parse(grid))
    mesh = Mesh.of(grid)
    rows, columns = parts.box(mesh.rank).slices
    return DistributedMap(x[:, :, rows, columns].clone(), parts, mesh)


def test_ranks_of_which_one_has_no_kernels_send_each_other_what_is_waited_for() -> None:
    assert max(on_ranks(2, _where_one_has_no_kernels, "1x2")) < 1e-3


def _under_another_default_device(grid: str) -> float:
    """Return the difference of gradients from those of one process under another default device."""
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.Dropout2d(0.0),
        nn.MaxPool2d(2),
    ]
    local = [LocallyConnected2d(4, 4, (4, 4), 3, padding=1), L2Pool2d(2), LocalContrastNorm2d(2)]
    module, x = nn.Sequential(*layers, *local, nn.Flatten(), nn.Linear(4, 3)), torch.rand(2, 2, 8, 8)
    module(x).square().sum().backward()
    with torch.device("meta"):
        partitioned: Any = partition(module, grid)
        partitioned(x).square().sum().backward()
    return _furthest(
        [one.grad for one in module.parameters()],
        [one.grad.full_tensor() for one in partitioned.parameters()],
    )


@pytest.mark.parametrize("grid", ["1x2", "1x3"])
def test_a_partitioned_module_does_not_mind_where_new_tensors_lie_by_default(grid: str) -> None:
    assert max(on_ranks(Grid.parse(grid).size, _under_another_default_device, grid)) < 1e-4
