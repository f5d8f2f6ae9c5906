"""Peak rates of this machine: dense products, and one pass over memory.

Knows: three implementations of a dense float32 product, and how to measure the peak in the same rounds. Does
not know: what is compared with it.
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
    """A product of two square float32 matrices, by every available library: PyTorch, oneDNN, NumPy.

    oneDNN is called as torch's compiler calls it, with a weight in oneDNN's own order; it is left out if
    torch has no such function.
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


def measure_with_dense_products(
    actions: Mapping[Key, Action], effort: Effort
) -> tuple[dict[Key, list[float]], dict[str, list[float]], Ceiling]:
    """Seconds of the actions, of every library's dense product in the same rounds, and the fastest
    product."""
    every: dict[tuple[str, object], Action] = {
        ("dense", name): action for name, action in dense_products(effort.dense_size).items()
    }
    return _measure_together(actions, every, effort)


def measure_with_fastest_dense_product(
    actions: Mapping[Key, Action], effort: Effort
) -> tuple[dict[Key, list[float]], Ceiling]:
    """Seconds of the actions, compared only with the library that was fastest when this process started."""
    size = effort.dense_size
    name = _fastest_library(size)
    samples, _, ceiling = _measure_together(actions, {("dense", name): dense_products(size)[name]}, effort)
    return samples, ceiling


def _measure_together(
    actions: Mapping[Key, Action], dense: Mapping[tuple[str, object], Action], effort: Effort
) -> tuple[dict[Key, list[float]], dict[str, list[float]], Ceiling]:
    together: dict[tuple[str, object], Action] = {**dense}
    together |= {("ours", key): action for key, action in actions.items()}
    samples = interleaved(together, effort.rounds)
    found = {str(name): taken for (what, name), taken in samples.items() if what == "dense"}
    fastest = min(found, key=lambda name: Spread.from_samples(found[name]).median)
    ceiling = Ceiling(fastest, dense_flops(effort.dense_size), found[fastest])
    return {key: samples["ours", key] for key in actions}, found, ceiling


@lru_cache(maxsize=4)
def _fastest_library(size: int) -> str:
    samples = interleaved(dense_products(size), 3)
    return min(samples, key=lambda name: Spread.from_samples(samples[name]).median)


def addition(elements: int) -> Action:
    """``y += x``: three passes over ``elements`` float32 values, two to read and one to write."""
    x, y = torch.ones(elements), torch.zeros(elements)
    return lambda: y.add_(x)


def copying(elements: int) -> Action:
    """``y.copy_(x)``: torch's way to read and write ``elements`` float32 values once each."""
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
