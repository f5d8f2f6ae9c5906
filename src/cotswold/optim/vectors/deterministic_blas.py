"""Arithmetic on vectors in memory; its bits depend neither on threads nor on the location of the numbers.

Knows: flat tensors. Does not know: names, commands, which process holds the other parts.

The bits of `torch.dot` and `add(alpha=…)` change with threads, alignment or the split over processes (the
library's choice; fused multiply-adds only in whole registers). Here products are rounded before they are
added, and sums have a fixed shape. The work proceeds in blocks that fit into the cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

BLOCK = 1 << 16
"""Elements per block; the order of a dot's sum depends on it."""
ROW = 512
"""Neighbouring elements of a block that a dot sums first."""


def dot(left: Tensor, right: Tensor) -> float:
    """Return the inner product of two flat tensors, computed in float64.

    Args:
        left: a tensor of shape (n,).
        right: a tensor of the same shape.

    >>> dot(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    11.0
    """
    total = 0.0
    for a, b in zip(_blocks(left), _blocks(right), strict=True):
        products = a.double() * b.double()
        rows = products.numel() // ROW
        if rows:
            total += float(products[: rows * ROW].view(rows, ROW).sum(dim=1).sum())
        if rows * ROW < products.numel():
            total += float(products[rows * ROW :].sum())
    return total


def axpby(out: Tensor, terms: Sequence[tuple[float, Tensor]]) -> None:
    """Compute ``out`` ← Σ factor · tensor.

    Args:
        out: the tensor of shape (n,) that receives the sum; it may be one of the terms.
        terms: factors and tensors of the same shape, added in this order; no terms give zeros.
    """
    if not terms:
        out.zero_()
        return
    if len(terms) == 1 and terms[0][0] == 1.0:
        out.copy_(terms[0][1])
        return
    blocks = [(factor, _blocks(tensor)) for factor, tensor in terms]
    for number, target in enumerate(_blocks(out)):
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


def _blocks(tensor: Tensor) -> Sequence[Tensor]:
    """Return the blocks of a flat tensor; `torch.split` would take longer than a dot of a small one."""
    return (tensor,) if tensor.numel() <= BLOCK else torch.split(tensor, BLOCK)
