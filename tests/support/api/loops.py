"""External training loops as processes, with results known in closed form."""

from __future__ import annotations

import sys

import torch
from torch import nn

import cotswold
from cotswold.recipe.schema.cluster import port_range

SIZE = 6


def make() -> nn.Module:
    """Return one parameter of zeros, with rows in several shards."""
    module = nn.Linear(SIZE, SIZE, bias=False)
    nn.init.zeros_(module.weight)
    return module


def count(address: str, token: str, pushes: int, ports: str = "", way: str = "encrypted") -> None:
    """Push a gradient of ones a number of times, one sample each, and print each counted number."""
    module = make()
    between = port_range(ports or None)
    with cotswold.connect(address, token, ports=between, encrypt=way == "encrypted") as s:
        for _ in range(pushes):
            s.pull(module)
            for parameter in module.parameters():
                parameter.grad = torch.ones_like(parameter)
            pushed = s.push(module, samples=1)
            print(pushed.number, flush=True)


if __name__ == "__main__":
    count(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
