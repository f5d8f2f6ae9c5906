"""Residual and dilated convolutional networks, in the style in which libraries write them.

Knows: ResNet-18, DeepLab. Does not know: ranks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def normed(below: int, above: int, size: int, step: int = 1, spread: int = 1) -> nn.Sequential:
    """Return a convolution and a batch normalisation."""
    around = spread * (size - 1) // 2
    convolution = nn.Conv2d(below, above, size, step, around, spread, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(above))


class Block(nn.Module):
    """Convolutions, and a shortcut around them."""

    def __init__(self, layers: nn.Module, below: int, above: int, step: int) -> None:
        super().__init__()
        self.layers = layers
        self.shortcut = nn.Identity() if (below, step) == (above, 1) else normed(below, above, 1, step)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x)
        y += self.shortcut(x)
        return F.relu(y, inplace=True)


def _basic(below: int, above: int, step: int = 1) -> nn.Module:
    layers = normed(below, above, 3, step), nn.ReLU(inplace=True), normed(above, above, 3)
    return Block(nn.Sequential(*layers), below, above, step)


def _bottleneck(below: int, width: int, step: int = 1, spread: int = 1) -> nn.Module:
    inner = normed(below, width, 1), nn.ReLU(inplace=True), normed(width, width, 3, step, spread)
    layers = *inner, nn.ReLU(inplace=True), normed(width, 4 * width, 1)
    return Block(nn.Sequential(*layers), below, 4 * width, step)


def _stem(width: int) -> nn.Sequential:
    return nn.Sequential(*normed(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))


def resnet18(width: int) -> nn.Module:
    """Return a ResNet-18 whose first blocks have ``width`` channels (64 in the paper)."""
    blocks = [_basic(width, width), _basic(width, width)]
    for below in (width, 2 * width, 4 * width):
        blocks += [_basic(below, 2 * below, 2), _basic(2 * below, 2 * below)]
    last = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 10)
    return nn.Sequential(_stem(width), *blocks, *last)


class DeepLab(nn.Module):
    """A dilated ResNet and convolutions of several dilations, with a summary of the map."""

    def __init__(self, width: int, rates: tuple[int, ...] = (12, 24, 36)) -> None:
        super().__init__()
        deep, out = 32 * width, 4 * width
        self.body = nn.Sequential(
            _stem(width),
            _bottleneck(width, width),
            _bottleneck(4 * width, 2 * width, 2),
            _bottleneck(8 * width, 4 * width),
            _bottleneck(16 * width, 8 * width, spread=2),
        )
        branches = [normed(deep, out, 1), *(normed(deep, out, 3, spread=rate) for rate in rates)]
        self.branches = nn.ModuleList(nn.Sequential(*branch, nn.ReLU()) for branch in branches)
        self.summary = nn.Sequential(nn.AdaptiveAvgPool2d(1), *normed(deep, out, 1), nn.ReLU())
        self.project = nn.Sequential(*normed((len(branches) + 1) * out, out, 1), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Sequential(*normed(out, out, 3), nn.ReLU(), nn.Conv2d(out, 5, 1))

    def forward(self, x: Tensor) -> Tensor:
        deep = self.body(x)
        whole = F.interpolate(self.summary(deep), size=deep.shape[-2:], mode="bilinear")
        found = torch.cat([*(branch(deep) for branch in self.branches), whole], 1)
        return F.interpolate(self.head(self.project(found)), size=x.shape[-2:], mode="bilinear")
