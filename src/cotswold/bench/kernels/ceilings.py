"""The fastest that this machine can be had to go: dense products, and one pass over memory.

Knows: three ways to a dense float32 product, how a round has its ceiling beside it. Does not know: what is
compared with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TypeVar

import torch

from cotswold.bench.effort import Effort
from cotswold.bench.measure import Spread, interleaved
from cotswold.bench.row import Ceiling

Action = Callable[[], object]
Key = TypeVar("Key")
TORCH_MM, ONEDNN, NUMPY, ADDED, COPIED = "torch.mm", "oneDNN", "NumPy", "y += x", "copy_"


def dense_products(size: int) -> dict[str, Action]:
    """A product of two square float32 matrices, by every library at hand: PyTorch's, oneDNN's, NumPy's.

    oneDNN is reached as torch's compiler reaches it, with a weight in oneDNN's own order; a torch without
    that way in leaves it out.
    """
    a, b = torch.randn(size, size), torch.randn(size, size)
    c = torch.empty(size, size)
    first, second, third = a.numpy(), b.numpy(), c.numpy()
    found: dict[str, Action] = {
        TORCH_MM: lambda: torch.mm(a, b, out=c),
        NUMPY: lambda: first.dot(second, out=third),
    }
    ordered = _reordered(b, size)
    if ordered is not None:
        weight = ordered
        found[ONEDNN] = lambda: _onednn(a, weight)
    return found


def dense_flops(size: int) -> int:
    """FLOPs of that product."""
    return 2 * size**3


def beside_dense(
    actions: Mapping[Key, Action], effort: Effort
) -> tuple[dict[Key, list[float]], dict[str, list[float]], Ceiling]:
    """Seconds of the actions, of every library's dense product in the same rounds, and the fastest one."""
    every: dict[tuple[str, object], Action] = {
        ("dense", name): action for name, action in dense_products(effort.dense_size).items()
    }
    return _beside(actions, every, effort)


def beside_fastest_dense(
    actions: Mapping[Key, Action], effort: Effort
) -> tuple[dict[Key, list[float]], Ceiling]:
    """The same beside the one library alone that was the fastest when this process began."""
    size = effort.dense_size
    name = _fastest_library(size)
    samples, _, ceiling = _beside(actions, {("dense", name): dense_products(size)[name]}, effort)
    return samples, ceiling


def _beside(
    actions: Mapping[Key, Action], dense: Mapping[tuple[str, object], Action], effort: Effort
) -> tuple[dict[Key, list[float]], dict[str, list[float]], Ceiling]:
    together: dict[tuple[str, object], Action] = {**dense}
    together |= {("ours", key): action for key, action in actions.items()}
    samples = interleaved(together, effort.rounds)
    found = {str(name): taken for (what, name), taken in samples.items() if what == "dense"}
    fastest = min(found, key=lambda name: Spread.of(found[name]).median)
    ceiling = Ceiling(fastest, dense_flops(effort.dense_size), found[fastest])
    return {key: samples["ours", key] for key in actions}, found, ceiling


@lru_cache(maxsize=4)
def _fastest_library(size: int) -> str:
    samples = interleaved(dense_products(size), 3)
    return min(samples, key=lambda name: Spread.of(samples[name]).median)


def added(elements: int) -> Action:
    """``y += x``: three passes over ``elements`` float32 values, two to read and one to write."""
    x, y = torch.ones(elements), torch.zeros(elements)
    return lambda: y.add_(x)


def copied(elements: int) -> Action:
    """``y.copy_(x)``: what torch takes to read and write ``elements`` float32 values once each."""
    x, y = torch.ones(elements), torch.zeros(elements)
    return lambda: y.copy_(x)


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
