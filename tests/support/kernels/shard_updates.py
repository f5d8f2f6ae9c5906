"""Updates of random shards, with their inputs and outputs, and a plain version in float64.

Knows: formulas, NaN in protected memory. Does not know: the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotswold.kernels.operands import name_of
from cotswold.kernels.updates import Kind, ShardKind

KINDS: tuple[Kind, ...] = ("add", "momentum", "adagrad")
CONSTANTS: dict[Kind, float] = {"add": 0.0, "momentum": 0.9, "adagrad": 1e-6}
MARGIN = 40
"""Numbers before and after a vector that must not change."""
Array = NDArray[np.float64]


def vector(values: Tensor, offset: int = 0) -> Tensor:
    """Return the same values between NaN, at an address not aligned to vectors."""
    held = torch.full((len(values) + 2 * MARGIN,), torch.nan, dtype=values.dtype)
    found = held[MARGIN - offset : MARGIN - offset + len(values)]
    return found.copy_(values)


def margins_are_whole(found: Tensor) -> bool:
    """True if nothing outside a vector was written."""
    held = torch.empty(0, dtype=found.dtype).set_(found.untyped_storage())
    return int(held.isnan().sum()) == len(held) - len(found)


@dataclass(frozen=True, eq=False)
class Operands:
    """A shard and its pushes."""

    shard: ShardKind
    weights: Tensor
    kept: Tensor | None
    pushes: list[tuple[float, Tensor]]

    @classmethod
    def random(cls, shard: ShardKind, pushes: int, seed: int = 0, offset: int = 0) -> Operands:
        """Return pushes of several rates."""
        generator = torch.Generator().manual_seed(seed)
        dtype = getattr(torch, shard.dtype)

        def some() -> Tensor:
            return vector(torch.randn(shard.size, dtype=dtype, generator=generator), offset)

        kept = None if shard.kind == "add" else vector(some().abs(), offset)
        return cls(shard, some(), kept, [(0.5 ** (1 + number % 5) - 0.1, some()) for number in range(pushes)])

    def copy(self) -> Operands:
        """Return the same with separate copies of weights and state."""
        kept = None if self.kept is None else vector(self.kept)
        return Operands(self.shard, vector(self.weights), kept, self.pushes)

    def expected(self) -> tuple[Array, Array]:
        """Return weights and state in float64."""
        shard = self.shard
        weights = self.weights.double().numpy().copy()
        kept = np.zeros_like(weights) if self.kept is None else self.kept.double().numpy().copy()
        for factor, push in self.pushes:
            p = push.double().numpy()
            if shard.kind == "add":
                weights = weights + factor * p
            elif shard.kind == "momentum":
                kept = shard.constant * kept - factor * p
                weights = weights + kept
            else:
                kept = kept + p * p
                weights = weights - factor * p / (np.sqrt(kept) + shard.constant)
        if shard.unit_norm:
            rows = weights.reshape(-1, shard.columns)
            weights = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).reshape(-1)
        return weights, kept


def shard_of(kind: Kind, size: int, dtype: torch.dtype, columns: int = 0) -> ShardKind:
    """Return a shard of ``size`` numbers, or of ``size`` rows of norm 1 if ``columns`` is above 0."""
    if columns:
        return ShardKind(kind, size * columns, name_of(dtype), CONSTANTS[kind], columns, unit_norm=True)
    return ShardKind(kind, size, name_of(dtype), CONSTANTS[kind])


def alike(one: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> bool:
    """True if all have the same bits."""
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None]
    return all(a.numpy().tobytes() == b.numpy().tobytes() for a, b in pairs)
