"""Vectors as lists of floats, for simulated state machines.

Knows: arithmetic. Does not know: the state machines.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import fsum, isfinite, sqrt
from typing import cast

from cotswold.optim.server_rules import Adagrad, AddUpdate, Momentum, Rule, Sgd
from cotswold.shards.core.admission import ReceivedFactors, ShardUpdates
from cotswold.wire import Shard


class ReadOnlyList(list[float]):
    """Numbers of a message, read-only."""

    def __setitem__(self, *_: object) -> None:
        raise AssertionError("numbers of a message are read-only")


class ListArithmetic:
    """The arithmetic of a server's shards (`cotswold.shards.core.shard_server.Arithmetic`)."""

    def zeros(self, size: int) -> list[float]:
        """Return a vector of zeros."""
        return [0.0] * size

    def read(self, buffer: object, size: int) -> list[float]:
        """Return the vector in a message; ValueError if it has another size."""
        if not isinstance(buffer, tuple) or len(buffer) != size:
            raise ValueError(f"not {size} numbers")
        return list(cast(tuple[float, ...], buffer))

    def borrow(self, buffer: object, size: int) -> list[float]:
        """Return the vector in a message, read-only."""
        return ReadOnlyList(self.read(buffer, size))

    def fits(self, buffer: object, size: int) -> bool:
        """True if a message's buffer is a vector of this size."""
        return isinstance(buffer, tuple) and len(buffer) == size

    def write(self, values: list[float]) -> object:
        """Return the buffer for a message."""
        return tuple(values)

    def contiguous(self, values: Sequence[list[float]]) -> list[list[float]]:
        """Return the vectors unchanged."""
        return list(values)

    def fit_all(self, buffers: Iterator[object], sizes: Sequence[int]) -> bool:
        """True if the next buffers are one for all vectors, or one each."""
        first = next(buffers, None) if sizes else None
        if self.fits(first, sum(sizes)):
            return True
        each = [first, *(next(buffers, None) for _ in sizes[1:])][: len(sizes)]
        return all(map(self.fits, each, sizes))

    def write_all(self, values: Sequence[list[float]]) -> tuple[object, ...]:
        """Return one buffer for all vectors."""
        return (tuple(number for each in values for number in each),) if values else ()

    def read_all(self, buffers: Iterator[object], sizes: Sequence[int]) -> list[list[float]]:
        """Return the vectors in one buffer for all, or in one each."""
        first = next(buffers) if sizes else ()
        if not self.fits(first, sum(sizes)):
            rest = (next(buffers) for _ in sizes[1:])
            return [self.read(each, size) for each, size in zip([first, *rest], sizes, strict=True)]
        stops = list(accumulate(sizes))
        whole = self.read(first, sum(sizes))
        return [whole[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]

    def borrow_all(self, buffers: Iterator[object], sizes: Sequence[int]) -> list[list[float]]:
        """Return the vectors in one buffer for all, or in one each, read-only."""
        return [ReadOnlyList(each) for each in self.read_all(buffers, sizes)]

    def combine(self, terms: Sequence[tuple[float, list[float]]], out: list[float] | None) -> list[float]:
        """Return Σ factor · vector."""
        return [
            sum(row)
            for row in zip(*([factor * each for each in values] for factor, values in terms), strict=True)
        ]

    def multiply(self, left: list[float], right: list[float], out: list[float] | None) -> list[float]:
        """Multiply elementwise."""
        return [one * other for one, other in zip(left, right, strict=True)]

    def dot(self, left: list[float], right: list[float]) -> float:
        """Return the inner product."""
        return fsum(one * other for one, other in zip(left, right, strict=True))

    def add(self, left: list[float], right: list[float]) -> list[float]:
        """Add to the left vector in place."""
        for place, each in enumerate(right):
            left[place] += each
        return left

    def scale(self, values: list[float], factor: float) -> list[float]:
        """Multiply by a factor in place."""
        for place in range(len(values)):
            values[place] *= factor
        return values

    def digest(self, values: list[float]) -> int:
        """CRC-32 of the bits."""
        return digest_of(values)


class ListUpdates:
    """Updates of a shard (`cotswold.shards.core.admission.UpdateArithmetic`)."""

    def apply(self, rule: Rule, passes: Sequence[ShardUpdates[list[float]]]) -> None:
        """Apply the pushes in order, value by value; then normalise each row if required."""
        for one in passes:
            for factor, pushed in one.pushes:
                for place, each in enumerate(
                    _product(pushed) if isinstance(pushed, ReceivedFactors) else pushed
                ):
                    _apply(rule, one.weights, one.state_vectors, place, factor, each)
            if one.unit_norm:
                _scale_rows(one.weights, one.columns)

    def product(self, factors: ReceivedFactors[list[float]]) -> list[float]:
        """Return errorsᵀ · activations."""
        return _product(factors)

    def first_not_finite(self, pushed: Sequence[list[float] | ReceivedFactors[list[float]]]) -> int | None:
        """Return the first place with a value, or a sum of squares, that is not finite; else None."""
        for place, each in enumerate(pushed):
            if isinstance(each, ReceivedFactors):
                bound = _squares(each.errors) * _squares(each.activations)
            else:
                bound = _squares(each)
            if not isfinite(bound):
                return place
        return None


def _scale_rows(weights: list[float], columns: int) -> None:
    for start in range(0, len(weights), columns):
        row = weights[start : start + columns]
        norm = sqrt(fsum(each * each for each in row))
        if norm:
            weights[start : start + columns] = [each / norm for each in row]


def _squares(values: list[float]) -> float:
    return sum(each * each for each in values)


def _product(factors: ReceivedFactors[list[float]]) -> list[float]:
    """Return errorsᵀ · activations."""
    errors, activations, examples = factors.errors, factors.activations, factors.examples
    rows, columns = len(errors) // examples, len(activations) // examples
    return [
        sum(errors[k * rows + row] * activations[k * columns + column] for k in range(examples))
        for row in range(rows)
        for column in range(columns)
    ]


def _apply(
    rule: Rule,
    weights: list[float],
    kept: Sequence[list[float]],
    place: int,
    factor: float,
    each: float,
) -> None:
    match rule:
        case AddUpdate():
            weights[place] += factor * each
        case Sgd():
            weights[place] -= factor * each
        case Momentum(momentum):
            kept[0][place] = momentum * kept[0][place] - factor * each
            weights[place] += kept[0][place]
        case Adagrad(epsilon):
            kept[0][place] += each * each
            weights[place] -= factor * each / (sqrt(kept[0][place]) + epsilon)


class ListSums:
    """A worker's sums (`cotswold.batch.core.partial_sums.SumArithmetic`)."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = sorted(shards, key=lambda each: each.number)
        self._size = max(shard.stop for shard in shards)

    def zeros(self) -> list[float]:
        """Return a new sum."""
        return [0.0] * self._size

    def add(self, left: list[float], right: list[float]) -> list[float]:
        """Add to the left vector in place."""
        return ListArithmetic().add(left, right)

    def by_shard(self, values: list[float], server: str) -> tuple[tuple[int, ...], tuple[object, ...]]:
        """Return the numbers and values of a server's shards."""
        own = [shard for shard in self._shards if shard.server == server]
        return tuple(shard.number for shard in own), tuple(
            tuple(values[each.start : each.stop]) for each in own
        )


def digest_of(values: Sequence[float]) -> int:
    """CRC-32 of the bits."""
    return zlib.crc32(struct.pack(f"<{len(values)}d", *values))
