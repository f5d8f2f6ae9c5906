"""Modules written without a mesh in mind compute on ranks the results of one process."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import cache
from threading import Condition, Thread
from typing import Any

import pytest
import torch
from tests.support.mesh.foreign_modules import SHAPE, Between, conv
from tests.support.mesh.ranks import on_ranks
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from cotswold.geometry import Box
from cotswold.mesh import partition
from cotswold.nn import L2Pool2d, convert_layers


def _asks(_: nn.Module, x: Any) -> Any:
    return x * 2 if isinstance(x, Tensor) else x * 3


class _AsksOfFeatures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(288, 6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x.flatten(1))
        out: Tensor = self.last(hidden if torch.is_tensor(hidden) else hidden * 3)
        return out


class _TwoPaths(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        replicated = x.mean((2, 3))
        out: Tensor = self.last(self.first(replicated).tanh()) + self.last(replicated)
        return out


def _shuffled(_: nn.Module, x: Any) -> Any:
    return x.view(x.shape[0], 2, 2, *x.shape[2:]).transpose(1, 2).reshape(x.shape)


def _attended(part: nn.Module, x: Any) -> Any:
    tokens = x.flatten(2).transpose(1, 2)
    return part[0](tokens, tokens, tokens)[0].transpose(1, 2).reshape(x.shape)  # type: ignore[index]  # a Sequential


def _encoded(part: nn.Module, x: Any) -> Any:
    return part(x.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(x.shape)


def _by_channel(part: nn.Module, x: Any) -> Any:
    pooled = F.adaptive_avg_pool2d(x, 1)
    weights = part(pooled.squeeze(-1).transpose(-1, -2))
    return x * weights.transpose(-1, -2).unsqueeze(-1).sigmoid()


def _with_class(part: nn.Module, x: Any) -> Any:
    return x + part(torch.zeros(1, dtype=torch.long))[0, :, None, None]


def _transformer() -> nn.Module:
    return nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)


def _last(part: nn.Module, x: Any) -> Any:
    return part(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class _ChannelsLast(nn.Module):
    """A matrix over the channels of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _last(self.part, x)
        return out


class _Borrowing(nn.Module):
    """A module that uses the matrices of its layers directly."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.linear(x.permute(0, 2, 3, 1), self.first.weight, self.first.bias).tanh()
        penalty = self.first.weight.square().sum() + self.last.weight.size(0) * self.first.bias.mean()
        pooled = F.linear(x.mean((1, 2)), self.last.weight, self.last.bias)
        out: Tensor = penalty + pooled + self.last(x).amax((1, 2))
        return out


MODULES: dict[str, Callable[[], nn.Module]] = {
    "one that asks whether it got a tensor": lambda: Between(_asks),
    "one that asks of features": _AsksOfFeatures,
    "a layer that is split by rows and takes replicated values": _TwoPaths,
    "a shuffle by views": lambda: Between(_shuffled),
    "attention": lambda: Between(_attended, nn.MultiheadAttention(4, 2, batch_first=True)),
    "an encoder layer": lambda: Between(_encoded, _transformer()),
    "root mean square norm of tokens": lambda: Between(_encoded, nn.RMSNorm(4), nn.Linear(4, 4)),
    "a convolution of pooled features": lambda: Between(
        _by_channel, nn.Conv1d(1, 1, 3, padding=1, bias=False)
    ),
    "an embedding": lambda: Between(_with_class, nn.Embedding(3, 4)),
    "counts of values": lambda: Between(lambda _, x: x / (torch.numel(x) + x.nelement() + x.ndimension())),
    "data": lambda: Between(lambda _, x: x + x.data if x.is_contiguous() or x.is_cpu else x),
    "channels last": lambda: nn.Sequential(_ChannelsLast(), nn.Conv2d(4, 2, 3)),
    "matrices that a module borrows": _Borrowing,
    "wide dilation": lambda: nn.Sequential(
        nn.Conv2d(4, 4, 3, padding=12, dilation=12), nn.Conv2d(4, 4, 3, padding=5, dilation=5)
    ),
    "images from one pixel": lambda: nn.Sequential(
        nn.Conv2d(4, 4, (8, 9)), nn.ConvTranspose2d(4, 4, 4), nn.ReLU(), nn.ConvTranspose2d(4, 4, 4, 2, 1)
    ),
    "dropout": lambda: Between(lambda _, x: F.dropout(x, 0.3)),
}


def _trained(module: nn.Module) -> list[Tensor]:
    """Return output, gradients of the input and of parameters, whole."""
    torch.manual_seed(5)
    x = torch.randn(SHAPE, dtype=torch.float64).requires_grad_()
    out = module(x)
    (out**2).mean().backward()
    found = [out, x.grad, *(values.grad for values in module.parameters())]
    return [one.full_tensor() if hasattr(one, "full_tensor") else one for one in found if one is not None]


def _differences() -> dict[str, float]:
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, make in MODULES.items():
            torch.manual_seed(0)
            module = make().double()
            pairs = zip(_trained(partition(module, "1x2")), _trained(module), strict=True)
            apart = [(a - b).abs().max() / b.abs().max().clamp_min(1e-30) for a, b in pairs]
            found[name] = torch.stack([one.detach() for one in apart]).max().item()
    return found


@cache
def differences() -> list[dict[str, float]]:
    return on_ranks(2, _differences)


@pytest.mark.parametrize("name", MODULES)
def test_a_foreign_module_computes_and_learns_the_same(name: str) -> None:
    assert all(found[name] < 1e-9 for found in differences())


class _Sorted(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.sort(-1)[0]


class _Attended(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Any) -> Any:
        tokens = x.flatten(2).transpose(1, 2)
        return self.layer(tokens, tokens, tokens)[0].transpose(1, 2).reshape(x.shape)


def _notices() -> list[list[str]]:
    """Return warnings about four modules, each called twice."""
    patches = nn.Sequential(nn.Conv2d(4, 4, 3), _Sorted(), nn.Conv2d(4, 4, 3), _Sorted())
    attention = nn.Sequential(nn.Conv2d(4, 4, 3), _Attended(), nn.Conv2d(4, 4, 3))
    ending = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(168, 3))
    calls = [
        (patches, torch.rand(SHAPE)),
        (attention, torch.rand(SHAPE)),
        (ending, torch.rand(SHAPE)),
        (conv(), torch.rand(SHAPE)[0]),
    ]
    found = []
    for module, x in calls:
        partitioned = partition(module, "1x2")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for _ in range(2):
                partitioned(x)
        assert all(one.filename == __file__ for one in told), "a notice names the line of the program"
        found.append([str(one.message) for one in told])
    return found


def test_what_ranks_keep_whole_is_said_once_with_the_name_of_the_layer() -> None:
    (sorts, attention, ending, image), others = on_ranks(2, _notices)
    assert [one[: one.index(" (2, 4, ")] for one in sorts] == [
        f"sort in _Sorted '{number}' gathers a map" for number in (1, 3)
    ]
    (attended,) = attention
    assert attended.startswith("attention in MultiheadAttention '1.layer' gathers an operand (42, 2, 4)")
    assert ending == []
    assert [re.search("^PartitionedConv2d got an image", one) is not None for one in image] == [True]
    assert others == [[], [], [], []]  # the first rank speaks for all


class _Watched(nn.Module):
    """A module that keeps the gradients of a map and of features."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.first, self.last = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(288, 6), nn.Linear(6, 5)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        out = self._watched(self.conv(x))
        watched: Tensor = self.last(self._watched(self.first(out.flatten(1))))
        return watched

    def _watched(self, x: Tensor) -> Tensor:
        x.register_hook(lambda grad: self.seen.append(getattr(grad, "full_tensor", grad.clone)()))  # type: ignore[no-untyped-call]  # torch's
        return x


def _hooked_gradients() -> list[bool]:
    """True for hooks on a map and on features that see the gradients of one process."""
    torch.manual_seed(0)
    module, x = _Watched().double(), torch.randn(SHAPE, dtype=torch.float64)
    partitioned = partition(module, "1x2")
    for one in (module, partitioned):
        with FlopCounterMode(display=False):  # which registers hooks of its own
            one(x).square().sum().backward()
    return [torch.allclose(*pair) for pair in zip(module.seen, partitioned.seen, strict=True)]


def test_hooks_on_tensors_in_parts_get_their_gradients() -> None:
    assert on_ranks(2, _hooked_gradients) == [[True, True]] * 2


def _parts_of_outputs() -> list[tuple[int, int]]:
    """Return extents of this rank's part of a map behind a view, and of images that grow from one pixel."""
    torch.manual_seed(0)
    shuffled = partition(Between(_shuffled), "1x2")
    grown = partition(nn.Sequential(nn.ConvTranspose2d(4, 4, 4), nn.ConvTranspose2d(4, 4, 4, 2, 1)), "1x2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outs = shuffled(torch.rand(SHAPE)), grown(torch.rand(2, 4, 1, 1))
    return [tuple(out.local.shape[2:]) for out in outs]


def test_every_rank_has_a_part_again_of_what_a_view_or_a_single_pixel_becomes() -> None:
    assert on_ranks(2, _parts_of_outputs) == [[(8, 5), (8, 3)], [(8, 4), (8, 5)]]


class _Meeting(nn.Module):
    """A module that waits briefly for another call of itself, and counts concurrent calls."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = self.most = 0

    def forward(self, x: Tensor) -> Tensor:
        with _CHANGED:
            self.inside += 1
            self.most = max(self.most, self.inside)
            _CHANGED.notify_all()
            _CHANGED.wait_for(lambda: self.inside > 1, timeout=0.05)
            self.inside -= 1
        return x * 1


_CHANGED = Condition()


def test_forward_passes_of_several_threads_follow_each_other() -> None:
    module = nn.Sequential(nn.Conv2d(2, 3, 3), _Meeting(), L2Pool2d(3), nn.Conv2d(3, 1, 1))
    partitioned, found = partition(module, "1x1"), {}

    def call(height: int) -> None:
        found[height] = partitioned(torch.ones(1, 2, height, 8)).full_tensor()

    threads = [Thread(target=call, args=(height,)) for height in (7, 12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert partitioned[1].most == 1
    for height, out in found.items():
        assert torch.allclose(out, module(torch.ones(1, 2, height, 8)))


def test_what_a_pooling_reads_of_a_map_does_not_depend_on_the_last_map() -> None:
    pooling, plane = partition(L2Pool2d(3), "1x1"), Box((0, 0), (7, 8))
    field = pooling._field((7, 8))
    pooling.output_size(12, 9)
    assert field.input_box(Box((0, 0), pooling.output_size(7, 8))) == plane
    pooling.output_size(5, 5)
    assert field.input_box(Box((0, 0), (7, 8))) == plane


def _converted() -> tuple[list[str], float]:
    """Return the classes of a partitioned network, and its largest difference from one process."""
    torch.manual_seed(0)
    x = torch.rand(SHAPE)
    layers = nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(168, 6), nn.ReLU(), nn.Linear(6, 3)
    network = convert_layers(nn.Sequential(*layers))
    whole = network(x)
    partitioned = partition(network, "1x2")
    found = [type(part).__name__ for part in partitioned.children()]
    return found, float((partitioned(x) - whole).abs().max().detach())


def test_converted_layers_are_split_as_torchs() -> None:
    for names, difference in on_ranks(2, _converted):
        assert names == ["Conv2d", "Flatten", "SplitLinear", "ReLU", "SplitLinear"]
        assert difference < 1e-5
