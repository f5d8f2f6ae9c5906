"""A module that tests of foreign modules share.

Knows: a function between two convolutions. Does not know: ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

SHAPE = (2, 4, 8, 9)


class Between(nn.Module):
    """A function of a map and a module between two convolutions."""

    def __init__(self, function: Callable[[nn.Module, Any], Any], *parts: nn.Module) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.part = nn.Sequential(*parts)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.function(self.part, torch.tanh(self.first(x))))
        return out


def conv() -> nn.Module:
    """Return a convolution that keeps the size of a map."""
    return nn.Conv2d(4, 4, 3, padding=1)
