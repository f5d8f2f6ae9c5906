"""A module and a data set to train in tests: which half of an image is bright."""

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
    """Make the module and data set in each of several processes."""
    return network(), halves()


def unfit() -> tuple[nn.Module, TensorDataset]:
    """Raise an error instead of making them."""
    raise ValueError("cannot find my file")


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return a user-defined loss."""
    return ((outputs - nn.functional.one_hot(targets, 2)) ** 2).mean()
