"""Arithmetic on vectors in memory, whose bits depend neither on threads nor on where the numbers lie.

Knows: flat tensors. Does not know: names, commands, who holds the other parts.

`torch.dot` and `add(alpha=…)` answer with other bits when threads, alignment or the cut over processes change
(a library's choice, fused multiply-adds in whole registers alone). Here products are rounded before they are
added, and sums have a fixed shape. Work goes block by block through memory that stays in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

BLOCK = 1 << 16
"""Elements that are worked on at a time; the shape of a dot's sum depends on it."""
ROW = 512
"""Neighbours in a block that a dot adds up first."""


def dot(left: Tensor, right: Tensor) -> float:
    """The inner product of two flat tensors, in float64.

    >>> dot(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    11.0
    """
    total = 0.0
    for a, b in zip(torch.split(left, BLOCK), torch.split(right, BLOCK), strict=True):
        products = a.double() * b.double()
        rows = products.numel() // ROW
        total += float(products[: rows * ROW].view(rows, ROW).sum(dim=1).sum())
        total += float(products[rows * ROW :].sum())
    return total


def combine(out: Tensor, terms: Sequence[tuple[float, Tensor]]) -> None:
    """``out`` ← Σ factor · tensor, added in the order of ``terms``; ``out`` may be among them."""
    if not terms:
        out.zero_()
        return
    if len(terms) == 1 and terms[0][0] == 1.0:
        out.copy_(terms[0][1])
        return
    blocks = [(factor, torch.split(tensor, BLOCK)) for factor, tensor in terms]
    for number, target in enumerate(torch.split(out, BLOCK)):
        factor, first = blocks[0][0], blocks[0][1][number]
        total = first * factor
        for factor, tensors in blocks[1:]:
            if factor == 1.0:
                total.add_(tensors[number])
            elif factor == -1.0:
                total.sub_(tensors[number])
            else:
                total.add_(tensors[number] * factor)
        target.copy_(total)
