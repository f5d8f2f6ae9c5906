"""Commands of an optimiser and updates of a shard on flat arrays, bitwise equal to a single process.

Knows: NumPy arrays, the blocks of `optim`, the kernels of `ops`. Does not know: names of vectors, the
placement of shards, the origin of pushes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from math import isfinite
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cotswold.files.checksum import crc32
from cotswold.ops.updates import FactorPush, Kind, Queue, UpdateRule, apply_factors, apply_queues
from cotswold.optim.server_rules import Adagrad, AddUpdate, Momentum, Rule, Sgd
from cotswold.optim.vectors import deterministic_blas
from cotswold.shards.core.admission import ReceivedFactors, ShardUpdates

_LINE_BYTES = 64
"""Cache line size: shards that are part of an array must begin at a multiple of it."""
Array = NDArray[Any]
"""``(size,)``, float32 or float64."""


class NumpyArithmetic:
    """Arithmetic of a server on the numbers of a shard; implements `shards.core.shard_server.Arithmetic`."""

    def __init__(self, dtype: str) -> None:
        self._dtype = np.dtype(dtype)

    def zeros(self, size: int) -> Array:
        """Return ``size`` zeros."""
        return np.zeros(size, self._dtype)

    def read(self, buffer: object, size: int) -> Array:
        """Return a copy of a received buffer; raise ValueError if it is not a vector of this size."""
        assert isinstance(buffer, bytes | bytearray | memoryview)
        if memoryview(buffer).nbytes != size * self._dtype.itemsize:
            raise ValueError(
                f"expected {size} numbers of {self._dtype.itemsize} bytes, got {memoryview(buffer).nbytes}"
            )
        return np.frombuffer(buffer, self._dtype).copy()

    def borrow(self, buffer: object, size: int) -> Array:
        """Return a received buffer, read-only, in the message's memory if its alignment allows.

        Raise ValueError if it is not a vector of this size.
        """
        assert isinstance(buffer, bytes | bytearray | memoryview)
        if memoryview(buffer).nbytes == size * self._dtype.itemsize:
            values: Array = np.frombuffer(buffer, self._dtype)
            if values.flags.aligned and values.flags.writeable:  # torch requires both
                return values
        return self.read(buffer, size)

    def fits(self, buffer: object, size: int) -> bool:
        """True if the received buffer is a vector of this size."""
        if not isinstance(buffer, bytes | bytearray | memoryview):
            return False
        return memoryview(buffer).nbytes == size * self._dtype.itemsize

    def fit_all(self, buffers: Iterator[object], sizes: Sequence[int]) -> bool:
        """True if the next buffers are one for all shards, or one each."""
        first = next(buffers, None) if sizes else None
        if len(sizes) > 1 and self.fits(first, sum(sizes)):
            return True
        each = [first, *(next(buffers, None) for _ in sizes[1:])][: len(sizes)]
        return all(map(self.fits, each, sizes))

    def write(self, values: Array) -> memoryview:
        """Return a view for a message, which must be sent before the values change."""
        return raw(values)

    def contiguous(self, values: Sequence[Array]) -> list[Array]:
        """Return parts of one array if each begins at a cache line."""
        aligned = all(each.nbytes % _LINE_BYTES == 0 for each in values)
        if not aligned or len(values) < 2 or _whole(values) is not None:
            return list(values)
        return _parts(np.concatenate(values), [each.size for each in values])

    def write_all(self, values: Sequence[Array]) -> tuple[memoryview, ...]:
        """Return views for a message, which must be sent before the values change."""
        whole = _whole(values)
        return tuple(map(raw, values)) if whole is None else (raw(whole),)

    def read_all(self, buffers: Iterator[object], sizes: Sequence[int]) -> list[Array]:
        """Return copies; raise ValueError if the buffers have other sizes."""
        return self._each(self.read, buffers, sizes)

    def borrow_all(self, buffers: Iterator[object], sizes: Sequence[int]) -> list[Array]:
        """Return the values in the message's memory, as `borrow`."""
        return self._each(self.borrow, buffers, sizes)

    def _each(
        self, read: Callable[[object, int], Array], buffers: Iterator[object], sizes: Sequence[int]
    ) -> list[Array]:
        if len(sizes) < 2:
            return [read(next(buffers), each) for each in sizes]
        first, total = next(buffers), sum(sizes)
        assert isinstance(first, bytes | bytearray | memoryview)
        if memoryview(first).nbytes == total * self._dtype.itemsize:
            return _parts(read(first, total), sizes)
        return [read(first, sizes[0]), *(read(next(buffers), each) for each in sizes[1:])]

    def combine(self, terms: Sequence[tuple[float, Array]], out: Array | None) -> Array:
        """Return Σ factor · vector, in order."""
        target = np.empty_like(terms[0][1]) if out is None else out
        combine(target, terms)
        return target

    def multiply(self, left: Array, right: Array, out: Array | None) -> Array:
        """Return the elementwise product."""
        target = np.empty_like(left) if out is None else out
        multiply(target, left, right)
        return target

    def dot(self, left: Array, right: Array) -> float:
        """Return the inner product in float64."""
        return dot(left, right)

    def add(self, left: Array, right: Array) -> Array:
        """Add in place: return the sum in the memory of ``left``."""
        add(left, right)
        return left

    def scale(self, values: Array, factor: float) -> Array:
        """Scale in place."""
        combine(values, [(factor, values)])
        return values

    def digest(self, values: Array) -> int:
        """Return the checksum of the bytes."""
        return crc32(raw(values))

    def apply(self, rule: Rule, passes: Sequence[ShardUpdates[Array]]) -> None:
        """Apply all pushes to all shards in place; each has a rate or scale, and numbers or factors of a
        gradient.

        Shards whose pushes are all numbers share one call; in other shards, consecutive pushes of one kind
        share a pass. Raise ValueError for vectors of other lengths or types.
        """
        sign = -1.0 if isinstance(rule, Sgd) else 1.0
        plain: list[Queue] = []
        update, like = None, (0, False)
        for one in passes:
            factors, pushed = zip(*one.pushes, strict=True)
            if ReceivedFactors in map(type, pushed):
                self._apply_mixed(rule, sign, one)
            else:
                if update is None or (one.columns, one.unit_norm) != like:
                    like = (one.columns, one.unit_norm)
                    update = _update(rule, *like)
                plain.append(_queue(update, one, sign, factors, pushed))
        apply_queues(plain)

    def _apply_mixed(self, rule: Rule, sign: float, one: ShardUpdates[Array]) -> None:
        beside = torch.from_numpy(one.state_vectors[0]) if one.state_vectors else None
        first, (factors, pushed) = 0, zip(*one.pushes, strict=True)
        kinds = [isinstance(each, ReceivedFactors) for each in pushed]
        while first < len(pushed):
            stop = first + 1
            while stop < len(pushed) and kinds[stop] is kinds[first]:
                stop += 1
            update = _update(rule, one.columns, one.unit_norm and stop == len(pushed))
            if kinds[first]:
                some = [_factors(sign * each, values) for each, values in one.pushes[first:stop]]
                apply_factors(update, torch.from_numpy(one.weights), beside, some)
            else:
                apply_queues([_queue(update, one, sign, factors[first:stop], pushed[first:stop])])
            first = stop

    def product(self, factors: ReceivedFactors[Array]) -> Array:
        """Return errorsᵀ · activations, row major (rows · columns)."""
        push = _factors(1.0, factors)
        found = np.zeros(push[1].shape[1] * push[2].shape[1], self._dtype)
        apply_factors(_update(AddUpdate(), push[2].shape[1], False), torch.from_numpy(found), None, [push])
        return found

    def first_not_finite(self, pushed: Sequence[Array | ReceivedFactors[Array]]) -> int | None:
        """Return the first position whose numbers, or their sum of squares in their own type, are not finite;
        None if all are. Some rules keep these sums.

        For factors, the test uses the product of both sums of squares, which bounds the square of every
        number of their gradient.
        """
        limit = float(np.finfo(self._dtype).max)
        seen: dict[int, float] = {}
        """Sums of squares of activations, which several shards of a tensor share."""
        with np.errstate(over="ignore", invalid="ignore"):
            for place, each in enumerate(pushed):
                if isinstance(each, ReceivedFactors):
                    which = id(each.activations)
                    if which not in seen:
                        seen[which] = _squares(each.activations)
                    bound = _squares(each.errors) * seen[which]
                else:
                    bound = _squares(each)
                if not bound < limit:
                    return place
        return None


def _queue(
    update: UpdateRule, one: ShardUpdates[Array], sign: float, factors: Sequence[float], pushes: Sequence[Any]
) -> Queue:
    kept = one.state_vectors[0] if one.state_vectors else None
    return Queue(update, one.weights, kept, [sign * each for each in factors], pushes)


def _factors(factor: float, pushed: Array | ReceivedFactors[Array]) -> FactorPush:
    assert isinstance(pushed, ReceivedFactors), "numbers and factors are mixed"
    errors, activations = (torch.from_numpy(one) for one in (pushed.errors, pushed.activations))
    return factor, errors.view(pushed.examples, -1), activations.view(pushed.examples, -1)


def is_finite(values: Array) -> bool:
    """True if all numbers and the sum of their squares in their own type are finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return _squares(values) < float(np.finfo(values.dtype).max)


def _squares(values: Array) -> float:
    """Return Σ x² in float64; or in the numbers' own type, at memory speed, if that is finite."""
    found = float(np.dot(values, values))
    return found if isfinite(found) else dot(values, values)


@lru_cache(maxsize=256)
def _update(rule: Rule, columns: int, unit_norm: bool) -> UpdateRule:
    return UpdateRule(_kind(rule), _constant(rule), columns, unit_norm)


def _kind(rule: Rule) -> Kind:
    match rule:
        case Momentum():
            return "momentum"
        case Adagrad():
            return "adagrad"
        case _:
            return "add"


def _constant(rule: Rule) -> float:
    match rule:
        case Momentum(momentum):
            return momentum
        case Adagrad(epsilon):
            return epsilon
        case _:
            return 0.0


def _parts(whole: Array, sizes: Iterable[int]) -> list[Array]:
    """Split an array into parts of these sizes."""
    stops = list(accumulate(sizes))
    return [whole[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]


def _whole(values: Sequence[Array]) -> Array | None:
    """Return the array whose `_parts` these are, if they are all of it; else None."""
    whole = values[0].base if len(values) > 1 else None
    if not isinstance(whole, np.ndarray) or any(each.base is not whole for each in values):
        return None
    is_all = whole.ndim == 1 and whole.size == sum(each.size for each in values)
    return whole if is_all and values[0].ctypes.data == whole.ctypes.data else None


def raw(values: Array) -> memoryview:
    """Return the bytes of contiguous numbers, as a view."""
    return values.data.cast("B")


def bytes_of(buffers: Iterable[object]) -> int:
    """Return the total bytes of a message's buffers."""
    return sum(
        memoryview(each).nbytes for each in buffers if isinstance(each, bytes | bytearray | memoryview)
    )


def combine(out: Array, terms: Sequence[tuple[float, Array]]) -> None:
    """``out`` ← Σ factor · vector, in order; ``out`` may be one of the vectors."""
    deterministic_blas.axpby(
        torch.from_numpy(out), [(factor, torch.from_numpy(each)) for factor, each in terms]
    )


def multiply(out: Array, left: Array, right: Array) -> None:
    """``out`` ← ``left`` · ``right``, elementwise."""
    torch.mul(torch.from_numpy(left), torch.from_numpy(right), out=torch.from_numpy(out))


def add(out: Array, other: Array) -> None:
    """``out`` ← ``out`` + ``other``."""
    torch.from_numpy(out).add_(torch.from_numpy(other))


def dot(left: Array, right: Array) -> float:
    """Return the inner product in float64."""
    return deterministic_blas.dot(torch.from_numpy(left), torch.from_numpy(right))
