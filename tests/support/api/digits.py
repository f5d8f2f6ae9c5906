"""A module and a data set that a test trains: which half of an image is bright."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 8 * 8, 2))


def halves(count: int = 64) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(count) % 2
    images = 0.1 * torch.rand(count, 1, 8, 8, generator=generator)
    images[labels == 0, :, :4] += 1
    images[labels == 1, :, 4:] += 1
    return TensorDataset(images, labels)


def both() -> tuple[nn.Module, TensorDataset]:
    """What each of several processes makes."""
    return network(), halves()


def unfit() -> tuple[nn.Module, TensorDataset]:
    """A factory that cannot make them."""
    raise ValueError("cannot find my file")


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss of the user's own."""
    return ((outputs - nn.functional.one_hot(targets, 2)) ** 2).mean()
