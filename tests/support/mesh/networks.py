"""Networks that tests partition, and their training data.

Knows: one network for each kind of difficulty. Does not know: ranks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cotswold.nn import L2Pool2d, LocalContrastNorm2d, LocallyConnected2d


def conv(**settings: int | tuple[int, int] | str) -> Callable[[], nn.Module]:
    kinds = {"out_channels": 4, "kernel_size": 3, **settings}
    return lambda: nn.Conv2d(2, **kinds)  # type: ignore[arg-type]  # told apart by torch


class Residual(nn.Module):
    """A block with a stride, batch normalisation, and a shortcut with other cuts."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.first = nn.Sequential(nn.Conv2d(4, 4, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(4))
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.short = nn.Conv2d(4, 4, 1, stride=2)
        self.scale = nn.Parameter(torch.ones(4, 1, 1))
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x), inplace=True)
        y = self.second(torch.tanh(self.first(x)))
        y += self.short(x) * self.scale
        y = torch.cat([y, F.gelu(y)], 1)
        out: Tensor = self.last(y.mean((2, 3)))
        return out


class Squeezed(nn.Module):
    """Channels weighted by a summary of the whole map."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.down, self.up = nn.Conv2d(2, 4, 4), nn.Conv2d(4, 2, 1), nn.Conv2d(2, 4, 1)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        weight = torch.sigmoid(self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1)))))
        out: Tensor = x * weight + F.adaptive_max_pool2d(x, 1)
        return out


class Decoder(nn.Module):
    """A decoder: down, and up again in two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(2, 4, 3, 2, 1)
        self.up = nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1)
        self.last = nn.Conv2d(7, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, (0, 1, 0, 1))
        low = F.leaky_relu(self.down(x))
        large = F.interpolate(low, scale_factor=2)
        out: Tensor = self.last(torch.cat([self.up(low), large], 1))
        return out[:, :1] * out[:, 1:]


def classifier() -> nn.Module:
    """Return convolutions and pooling, then fully connected layers whose units do not divide evenly."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1, ceil_mode=True),
        nn.Flatten(),
        nn.Linear(6 * 3 * 2, 7),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(7, 11),
        nn.Tanh(),
        nn.Linear(11, 5),
    )


def speech() -> nn.Module:
    return nn.Sequential(nn.Linear(22, 13), nn.Sigmoid(), nn.Linear(13, 10), nn.Sigmoid(), nn.Linear(10, 7))


def local() -> nn.Module:
    return nn.Sequential(
        LocallyConnected2d(2, 3, (13, 11), 4, stride=2, padding=1, block=(2, 2)),
        L2Pool2d(3, padding="same"),
        LocalContrastNorm2d(3),
        LocallyConnected2d(3, 2, (8, 6), 3),
    )


def pools() -> nn.Module:
    return nn.Sequential(
        nn.AvgPool2d(3, 2, 1, ceil_mode=True),
        nn.Conv2d(2, 3, 1),
        nn.AvgPool2d(2, 1, 1, count_include_pad=False),
        nn.MaxPool2d(2, 3, dilation=2),
    )


def flattened_at_once() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(2 * 13 * 11, 3))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "kernel 3, stride 2": conv(stride=2),
    "kernel 3, stride 2, padding 1": conv(stride=2, padding=1),
    "even kernel": conv(kernel_size=4),
    "even kernel, padding 2, stride 3": conv(kernel_size=4, padding=2, stride=3),
    "kernel wider than a part": conv(kernel_size=(11, 9), padding=(4, 2)),
    "kernel 1 that sees padding": conv(kernel_size=1, padding=2),
    "stride larger than the kernel": conv(kernel_size=2, stride=5),
    "dilation and groups": conv(kernel_size=3, dilation=(2, 3), groups=2, padding="same"),
    "residual": Residual,
    "squeezed": Squeezed,
    "decoder": Decoder,
    "classifier": classifier,
    "speech": speech,
    "local": local,
    "pools": pools,
    "flattened at once": flattened_at_once,
}


def inputs(name: str) -> Tensor:
    """Return a batch for a network, in float64."""
    torch.manual_seed(7)
    shape = (5, 22) if name == "speech" else (3, 2, 13, 11)
    return torch.randn(shape, dtype=torch.float64)
