"""Networks as people write them learn on ranks as in one process: crops, checkpoints, samplers, volumes."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from tests.support.mesh.compared import module_differences, tensor
from tests.support.mesh.foreign_modules import Between, conv
from tests.support.mesh.ranks import on_ranks
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from cotswold.geometry import Grid
from cotswold.mesh import partition
from cotswold.nn import LocallyConnected2d

GRIDS = ("1x2", "2x2", "1x3")
SHAPE = (2, 4, 9, 11)


class _CropNet(nn.Module):
    """A U-Net without padding, whose skip connection is cropped to the centre."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU())
        self.low = nn.Sequential(nn.Conv2d(4, 6, 2), nn.ReLU(), nn.Conv2d(6, 6, 1))
        self.up, self.last = nn.ConvTranspose2d(6, 4, 2, 2), nn.Conv2d(8, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.down(x)
        low = self.up(self.low(F.max_pool2d(wide, 2)))
        top, left = (wide.shape[2] - low.shape[2]) // 2, (wide.shape[3] - low.shape[3]) // 2
        wide = wide[:, :, top : top + low.shape[2], left : left + low.shape[3]]
        out: Tensor = self.last(torch.cat([wide, low], 1))
        return out


class _Transformer(nn.Module):
    """A spatial transformer that begins with the identity."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(4, 2, 3), nn.Conv2d(4, 4, 3)
        self.first, self.place = nn.Linear(2, 5), nn.Linear(5, 6)
        nn.init.zeros_(self.place.weight)
        self.place.bias.data = torch.tensor([1.0, 0, 0, 0, 1, 0])

    def forward(self, x: Tensor) -> Tensor:
        theta = self.place(self.first(self.conv(x).mean((2, 3))).relu()).view(-1, 2, 3)
        grid = F.affine_grid(theta, list(x.shape), align_corners=False)
        out: Tensor = self.last(F.grid_sample(x, grid, align_corners=False))
        return out


class _Dense(nn.Module):
    """A dense block that saves memory: its first part is computed again in the backward pass."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.stem, self.reentrant = nn.Conv2d(4, 4, 3, padding=1), reentrant
        self.norm, self.conv, self.scale = (
            nn.BatchNorm2d(8),
            nn.Conv2d(8, 4, 3, padding=1),
            nn.Parameter(torch.ones(4, 1, 1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = F.avg_pool2d(x, 3, 1, 1)

        def closure(*inputs: Tensor) -> Tensor:
            out: Tensor = self.scale * self.conv(F.dropout(self.norm(torch.cat(inputs, 1)).relu(), 0.2))
            return out

        out: Tensor = checkpoint(closure, x, y, use_reentrant=self.reentrant)
        return torch.cat([x, y, out], 1)


def _checkpointed(reentrant: bool) -> Callable[[nn.Module, Any], Any]:
    return lambda part, x: checkpoint(part, x, use_reentrant=reentrant)


def _mean_checkpointed(reentrant: bool) -> Callable[[nn.Module, Any], Any]:
    return lambda part, x: x * checkpoint(lambda y: part(y).mean(), x, use_reentrant=reentrant)


def _nested(part: Any, x: Any) -> Any:
    inner = lambda y: checkpoint(part[1], part[0](y), use_reentrant=True)  # noqa: E731
    return checkpoint(inner, x, use_reentrant=False)


class _Squeezed(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        pooled = x.mean((2, 3))
        for part in self.parts:
            pooled = part(pooled).tanh()
        return x * pooled[:, :, None, None]


def _features_checkpointed(part: Any, x: Any) -> Any:
    pooled = checkpoint(lambda y: part[1](part[0](y).relu()), x.mean((2, 3)), use_reentrant=True)
    return x * pooled[:, :, None, None]


class _Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return (weight + weight.flip(3)) / 2


def _symmetric(module: nn.Module) -> nn.Module:
    parametrize.register_parametrization(module, "weight", _Symmetric())
    return module


def _padded(mode: Any, **settings: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(
        nn.Conv2d(4, 4, 3, padding=(1, 2), padding_mode=mode, **settings), nn.Conv2d(4, 2, 2)
    )


class _Volumes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv3d(1, 2, 3, padding=1), nn.BatchNorm3d(2)
        self.last = nn.Conv2d(8, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.norm(self.first(x.view(x.shape[0], 1, *x.shape[1:]))).flatten(1, 2))
        return out


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "a crop": _CropNet,
    "a spatial transformer": _Transformer,
    "a dense block, checkpointed": lambda: _Dense(False),
    "a dense block, reentrant": lambda: _Dense(True),
    "a checkpoint": lambda: Between(_checkpointed(False), conv(), nn.BatchNorm2d(4), nn.ReLU()),
    "a reentrant checkpoint": lambda: Between(_checkpointed(True), conv(), nn.ReLU(), nn.Dropout(0.3)),
    "a checkpointed mean": lambda: Between(_mean_checkpointed(False), conv()),
    "a reentrant mean": lambda: Between(_mean_checkpointed(True), conv()),
    "a checkpointed local layer": lambda: Between(
        _checkpointed(False), LocallyConnected2d(4, 4, (9, 11), 3, padding=1)
    ),
    "nested checkpoints": lambda: Between(_nested, conv(), nn.Sequential(conv(), nn.Tanh())),
    "checkpoints in sequence": lambda: Between(
        lambda part, x: checkpoint_sequential(part, 2, x, use_reentrant=True),  # type: ignore[no-untyped-call]  # torch's
        conv(),
        nn.Tanh(),
        conv(),
        nn.ReLU(),
    ),
    "checkpointed features": lambda: Between(_features_checkpointed, nn.Linear(4, 5), nn.Linear(5, 4)),
    "a checkpoint without gradients": lambda: nn.Sequential(_Start(), nn.Conv2d(4, 2, 3)),
    "a checkpoint after which an image is whole": lambda: Between(_checkpointed_pool, conv()),
    "reflect": _padded("reflect"),
    "replicate": _padded("replicate", stride=2),
    "circular": _padded("circular"),
    "weight norm": lambda: nn.Sequential(
        parametrizations.weight_norm(nn.Conv2d(4, 4, 3)), nn.Conv2d(4, 2, 1)
    ),
    "weight norm of the outermost": lambda: parametrizations.weight_norm(nn.Conv2d(4, 4, 3)),
    "weight norm by hooks": lambda: nn.Sequential(_old_weight_norm(nn.Conv2d(4, 4, 3)), nn.Conv2d(4, 2, 1)),
    "spectral norm": lambda: nn.Sequential(
        parametrizations.spectral_norm(nn.Conv2d(4, 4, 3, bias=False)), nn.Flatten(), nn.Linear(252, 3)
    ),
    "spectral norm by hooks": lambda: nn.Sequential(
        nn.utils.spectral_norm(nn.Conv2d(4, 4, 3)), nn.Conv2d(4, 2, 1)
    ),
    "norms of matrices": lambda: _Squeezed(
        parametrizations.spectral_norm(nn.Linear(4, 5)), nn.Linear(5, 6), _old_weight_norm(nn.Linear(6, 4))
    ),
    "a parametrization": lambda: Between(lambda part, x: part(x), _symmetric(conv())),
    "a parametrization in a checkpoint": lambda: Between(
        _checkpointed(True), _symmetric(conv()), _old_weight_norm(conv())
    ),
    "instance norm with running statistics": lambda: Between(
        lambda part, x: part(x), nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
    ),
    "volumes": _Volumes,
    "upsampling": lambda: nn.Sequential(
        nn.Upsample(scale_factor=1.7, mode="bicubic"),
        nn.Conv2d(4, 4, 3),
        nn.Upsample((7, 6)),
        nn.Conv2d(4, 2, 2),
    ),
    "dropout, slopes and windows at random": lambda: nn.Sequential(
        conv(),
        nn.RReLU(),
        nn.AlphaDropout(0.2),
        nn.FractionalMaxPool2d(2, output_ratio=0.6),
        nn.FeatureAlphaDropout(0.2),
    ),
    "unpooling": lambda: Between(_unpooled),
    "a Fourier layer": lambda: Between(
        lambda _, x: torch.fft.irfft2(torch.fft.rfft2(x).tanh(), s=x.shape[2:])
    ),
    "windows": lambda: Between(
        lambda _, x: F.fold(F.unfold(x, 3, padding=1).tanh(), x.shape[2:], 3, padding=1)
    ),
}


class _Start(nn.Module):
    """A reentrant checkpoint whose input needs no gradient, so that torch gives none to its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.conv, x.detach(), use_reentrant=True)
        return out + x


def _checkpointed_pool(part: Any, x: Any) -> Any:
    """Convolve pooled values, which are whole, before a view gathers the map."""
    pooled = checkpoint(lambda y: part(F.adaptive_avg_pool2d(y, (4, 5))), x, use_reentrant=False)
    tokens = x.flatten(2).unflatten(2, x.shape[2:])
    return tokens + F.interpolate(pooled, size=x.shape[2:])


def _unpooled(_: nn.Module, x: Any) -> Any:
    values, places = F.max_pool2d(x, 2, return_indices=True)
    return F.max_unpool2d(values * 2, places, [2, 2], output_size=x.shape[2:])


def _old_weight_norm(module: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.weight_norm(module)


def _differences(grid: str) -> dict[str, float]:
    return module_differences({name: (make, SHAPE) for name, make in NETWORKS.items()}, grid)


@cache
def differences(grid: str) -> list[dict[str, float]]:
    found: list[dict[str, float]] = on_ranks(Grid.parse(grid).size, _differences, grid)
    return found


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_foreign_network_learns_the_same(name: str, grid: str) -> None:
    assert all(found[name] < 1e-10 for found in differences(grid))


SMALL = ("a checkpoint", "a dense block, reentrant", "nested checkpoints", "circular", "unpooling")


def _small_differences() -> dict[str, float]:
    return module_differences({name: (NETWORKS[name], (2, 4, 4, 2)) for name in SMALL}, "1x3", 1)


def test_networks_learn_the_same_where_ranks_have_no_part() -> None:
    for found in on_ranks(3, _small_differences):
        assert all(one < 1e-10 for one in found.values()), found


def _notices() -> dict[str, list[str]]:
    """Return the warnings of some networks, each called and trained twice."""
    told = {}
    for name in (*GATHERING, "a crop", "reflect", "upsampling", "a dense block, reentrant"):
        partitioned = partition(NETWORKS[name]().double(), "1x2")
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            for _ in range(2):
                partitioned(tensor(0, *SHAPE)).square().mean().backward()
        told[name] = [str(one.message) for one in found if issubclass(one.category, RuntimeWarning)]
    return told


GATHERING = {
    "a spatial transformer": "grid_sample in Partitioned_Transformer gathers a map",
    "unpooling": "max_unpool2d in PartitionedBetween gathers a map",
    "windows": "unfold in PartitionedBetween gathers a map",
    "a Fourier layer": "fft_rfft2 in PartitionedBetween gathers a map",
    "volumes": "Conv3d 'first' takes volumes, which are not distributed",
    "dropout, slopes and windows at random": "rrelu .* in RReLU '1' gathers a map",
}


def test_a_map_that_becomes_whole_is_said_once_a_layer() -> None:
    first, others = on_ranks(2, _notices)
    for name, found in first.items():
        if name in GATHERING:
            assert sum(re.search(GATHERING[name], each) is not None for each in found) == 1, found
        else:
            assert found == []
    assert not any(others.values())  # the first rank speaks for all
