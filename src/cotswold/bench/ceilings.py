"""The fastest that this machine can be had to go: dense products, and one pass over memory.

Knows: three ways to a dense float32 product. Does not know: what is compared with them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Action = Callable[[], object]


def dense_products(size: int) -> dict[str, Action]:
    """A product of two square float32 matrices, by every library at hand: PyTorch's, oneDNN's, NumPy's.

    oneDNN is reached as torch's compiler reaches it, with a weight in oneDNN's own order; a torch without
    that way in leaves it out.
    """
    a, b = torch.randn(size, size), torch.randn(size, size)
    c = torch.empty(size, size)
    first, second, third = a.numpy(), b.numpy(), c.numpy()
    found: dict[str, Action] = {
        "torch.mm": lambda: torch.mm(a, b, out=c),
        "NumPy": lambda: first.dot(second, out=third),
    }
    ordered = _reordered(b, size)
    if ordered is not None:
        weight = ordered
        found["oneDNN"] = lambda: _onednn(a, weight)
    return found


def dense_flops(size: int) -> int:
    """FLOPs of that product."""
    return 2 * size**3


def added(elements: int) -> Action:
    """``y += x``: three passes over ``elements`` float32 values, two to read and one to write."""
    x, y = torch.ones(elements), torch.zeros(elements)
    return lambda: y.add_(x)


def _reordered(weight: torch.Tensor, rows: int) -> torch.Tensor | None:
    try:
        ordered: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.t().contiguous(), rows)
        _onednn(weight, ordered)
    except (AttributeError, RuntimeError):  # not in this build, or not for this processor
        return None
    return ordered


def _onednn(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return out
