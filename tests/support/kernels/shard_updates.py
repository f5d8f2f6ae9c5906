"""Updates of random shards, with what they read and write, and the same written plainly in float64.

Knows: formulas, that what must not be touched is NaN. Does not know: what is tested.
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
"""Numbers before and behind a vector, which nobody may change."""
Array = NDArray[np.float64]


def vector(values: Tensor, offset: int = 0) -> Tensor:
    """The same values between NaN, beginning at a number that is no multiple of a vector's."""
    held = torch.full((len(values) + 2 * MARGIN,), torch.nan, dtype=values.dtype)
    found = held[MARGIN - offset : MARGIN - offset + len(values)]
    return found.copy_(values)


def margins_are_whole(found: Tensor) -> bool:
    """Whether nothing beside a vector was written."""
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
        """Pushes of several rates."""
        generator = torch.Generator().manual_seed(seed)
        dtype = getattr(torch, shard.dtype)

        def some() -> Tensor:
            return vector(torch.randn(shard.size, dtype=dtype, generator=generator), offset)

        kept = None if shard.kind == "add" else vector(some().abs(), offset)
        return cls(shard, some(), kept, [(0.5 ** (1 + number % 5) - 0.1, some()) for number in range(pushes)])

    def copy(self) -> Operands:
        """The same with weights and what is kept in memory of their own."""
        kept = None if self.kept is None else vector(self.kept)
        return Operands(self.shard, vector(self.weights), kept, self.pushes)

    def expected(self) -> tuple[Array, Array]:
        """Weights and what is kept, in float64."""
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
    """A shard of so many numbers; in rows of norm 1 where ``columns`` is above 0, ``size`` rows of them."""
    if columns:
        return ShardKind(kind, size * columns, name_of(dtype), CONSTANTS[kind], columns, unit_norm=True)
    return ShardKind(kind, size, name_of(dtype), CONSTANTS[kind])


def alike(one: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> bool:
    """Whether all have the same bits."""
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None]
    return all(a.numpy().tobytes() == b.numpy().tobytes() for a, b in pairs)
