"""Commands of an optimiser, and updates of a shard, on flat numbers in memory: as in one process, to the bit.

Knows: NumPy arrays, the blocks of `optim`, the kernels of `ops`. Does not know: names of vectors, which shard
is where, where pushes come from.
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
from cotswold.ops.updates import FactorPush, Kind, Queue, Update, apply_each, apply_factors
from cotswold.optim.server_rules import Adagrad, AddUpdate, Momentum, Rule, Sgd
from cotswold.optim.vectors import deterministic_blas
from cotswold.paramserver.core.admission import Factors, Pass

_LINE_BYTES = 64
"""A shard that is a part of an array begins where a line of the cache does, as one by itself."""
Array = NDArray[Any]
"""``(size,)``, float32 or float64."""


class NumpyArithmetic:
    """What a server does with the numbers of a shard: `shards.core.shard_server.Arithmetic`."""

    def __init__(self, dtype: str) -> None:
        self._dtype = np.dtype(dtype)

    def zeros(self, size: int) -> Array:
        """As many zeros."""
        return np.zeros(size, self._dtype)

    def read(self, buffer: object, size: int) -> Array:
        """A copy of what came in a message; raises ValueError where it is no vector of this size."""
        assert isinstance(buffer, bytes | bytearray | memoryview)
        if memoryview(buffer).nbytes != size * self._dtype.itemsize:
            raise ValueError(
                f"{memoryview(buffer).nbytes} bytes are no {size} numbers of {self._dtype.itemsize} bytes"
            )
        return np.frombuffer(buffer, self._dtype).copy()

    def take(self, buffer: object, size: int) -> Array:
        """What came in a message, in the message's memory where numbers can be read there; only to be read.

        Raises ValueError where it is no vector of this size.
        """
        assert isinstance(buffer, bytes | bytearray | memoryview)
        if memoryview(buffer).nbytes == size * self._dtype.itemsize:
            values: Array = np.frombuffer(buffer, self._dtype)
            if values.flags.aligned and values.flags.writeable:  # as torch wants it
                return values
        return self.read(buffer, size)

    def fits(self, buffer: object, size: int) -> bool:
        """Whether what came in a message is a vector of this size."""
        if not isinstance(buffer, bytes | bytearray | memoryview):
            return False
        return memoryview(buffer).nbytes == size * self._dtype.itemsize

    def fit_all(self, buffers: Iterator[object], sizes: Sequence[int]) -> bool:
        """Whether the next are one for all, or one each."""
        first = next(buffers, None) if sizes else None
        if len(sizes) > 1 and self.fits(first, sum(sizes)):
            return True
        each = [first, *(next(buffers, None) for _ in sizes[1:])][: len(sizes)]
        return all(map(self.fits, each, sizes))

    def write(self, values: Array) -> memoryview:
        """What goes into a message, which is sent before the values change."""
        return raw(values)

    def together(self, values: Sequence[Array]) -> list[Array]:
        """Parts of one array, where each begins as memory is read."""
        aligned = all(each.nbytes % _LINE_BYTES == 0 for each in values)
        if not aligned or len(values) < 2 or _whole(values) is not None:
            return list(values)
        return _parts(np.concatenate(values), [each.size for each in values])

    def write_all(self, values: Sequence[Array]) -> tuple[memoryview, ...]:
        """What goes into a message, which is sent before the values change."""
        whole = _whole(values)
        return tuple(map(raw, values)) if whole is None else (raw(whole),)

    def read_all(self, buffers: Iterator[object], sizes: Sequence[int]) -> list[Array]:
        """Copies; raises ValueError where these are no vectors of such sizes."""
        return self._each(self.read, buffers, sizes)

    def take_all(self, buffers: Iterator[object], sizes: Sequence[int]) -> list[Array]:
        """In the message's memory, as `take`."""
        return self._each(self.take, buffers, sizes)

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
        """Σ factor · vector, in order."""
        target = np.empty_like(terms[0][1]) if out is None else out
        combine(target, terms)
        return target

    def multiply(self, left: Array, right: Array, out: Array | None) -> Array:
        """Element by element."""
        target = np.empty_like(left) if out is None else out
        multiply(target, left, right)
        return target

    def dot(self, left: Array, right: Array) -> float:
        """The inner product, in float64."""
        return dot(left, right)

    def add(self, left: Array, right: Array) -> Array:
        """The sum, in the memory of ``left``."""
        add(left, right)
        return left

    def scale(self, values: Array, factor: float) -> Array:
        """The multiple, in place."""
        combine(values, [(factor, values)])
        return values

    def digest(self, values: Array) -> int:
        """The checksum of the bytes."""
        return crc32(raw(values))

    def apply(self, rule: Rule, passes: Sequence[Pass[Array]]) -> None:
        """All pushes to all shards, in place: each is a rate or scale, and numbers or factors of a gradient.

        Shards whose pushes are all numbers are one call; of others neighbours of one kind are one pass.
        Raises ValueError for vectors of other lengths or types.
        """
        sign = -1.0 if isinstance(rule, Sgd) else 1.0
        plain: list[Queue] = []
        update, like = None, (0, False)
        for one in passes:
            factors, pushed = zip(*one.pushes, strict=True)
            if Factors in map(type, pushed):
                self._apply_mixed(rule, sign, one)
            else:
                if update is None or (one.columns, one.unit_norm) != like:
                    like = (one.columns, one.unit_norm)
                    update = _update(rule, *like)
                plain.append(_queue(update, one, sign, factors, pushed))
        apply_each(plain)

    def _apply_mixed(self, rule: Rule, sign: float, one: Pass[Array]) -> None:
        beside = torch.from_numpy(one.kept[0]) if one.kept else None
        first, (factors, pushed) = 0, zip(*one.pushes, strict=True)
        kinds = [isinstance(each, Factors) for each in pushed]
        while first < len(pushed):
            stop = first + 1
            while stop < len(pushed) and kinds[stop] is kinds[first]:
                stop += 1
            update = _update(rule, one.columns, one.unit_norm and stop == len(pushed))
            if kinds[first]:
                some = [_factors(sign * each, values) for each, values in one.pushes[first:stop]]
                apply_factors(update, torch.from_numpy(one.weights), beside, some)
            else:
                apply_each([_queue(update, one, sign, factors[first:stop], pushed[first:stop])])
            first = stop

    def product(self, factors: Factors[Array]) -> Array:
        """errorsᵀ · activations, row major (rows · columns)."""
        push = _factors(1.0, factors)
        found = np.zeros(push[1].shape[1] * push[2].shape[1], self._dtype)
        apply_factors(_update(AddUpdate(), push[2].shape[1], False), torch.from_numpy(found), None, [push])
        return found

    def first_not_finite(self, pushed: Sequence[Array | Factors[Array]]) -> int | None:
        """The first place where not all numbers are finite, or the sum of their squares in their own type,
        which some rules keep, is not; None where there is none.

        Of factors: the product of both sums, which bounds the square of every number of their gradient.
        """
        limit = float(np.finfo(self._dtype).max)
        seen: dict[int, float] = {}
        """Sums of activations, which several shards of a tensor share."""
        with np.errstate(over="ignore", invalid="ignore"):
            for place, each in enumerate(pushed):
                if isinstance(each, Factors):
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
    update: Update, one: Pass[Array], sign: float, factors: Sequence[float], pushes: Sequence[Any]
) -> Queue:
    kept = one.kept[0] if one.kept else None
    return Queue(update, one.weights, kept, [sign * each for each in factors], pushes)


def _factors(factor: float, pushed: Array | Factors[Array]) -> FactorPush:
    assert isinstance(pushed, Factors), "only factors are among factors"
    errors, activations = (torch.from_numpy(one) for one in (pushed.errors, pushed.activations))
    return factor, errors.view(pushed.examples, -1), activations.view(pushed.examples, -1)


def is_finite(values: Array) -> bool:
    """Whether all numbers are finite, and so is the sum of their squares in their own type."""
    with np.errstate(over="ignore", invalid="ignore"):
        return _squares(values) < float(np.finfo(values.dtype).max)


def _squares(values: Array) -> float:
    """Σ x², in float64; where it is finite in the numbers' own type, in that, at the speed of memory."""
    found = float(np.dot(values, values))
    return found if isfinite(found) else dot(values, values)


@lru_cache(maxsize=256)
def _update(rule: Rule, columns: int, unit_norm: bool) -> Update:
    return Update(_kind(rule), _constant(rule), columns, unit_norm)


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
    """One after the other."""
    stops = list(accumulate(sizes))
    return [whole[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]


def _whole(values: Sequence[Array]) -> Array | None:
    """The array whose `_parts` these are, all of them; None where they are not."""
    whole = values[0].base if len(values) > 1 else None
    if not isinstance(whole, np.ndarray) or any(each.base is not whole for each in values):
        return None
    is_all = whole.ndim == 1 and whole.size == sum(each.size for each in values)
    return whole if is_all and values[0].ctypes.data == whole.ctypes.data else None


def raw(values: Array) -> memoryview:
    """The bytes of contiguous numbers, in place."""
    return values.data.cast("B")


def bytes_of(buffers: Iterable[object]) -> int:
    """How many bytes buffers of a message have."""
    return sum(
        memoryview(each).nbytes for each in buffers if isinstance(each, bytes | bytearray | memoryview)
    )


def combine(out: Array, terms: Sequence[tuple[float, Array]]) -> None:
    """``out`` ← Σ factor · vector, in order; ``out`` may be one of them."""
    deterministic_blas.axpby(
        torch.from_numpy(out), [(factor, torch.from_numpy(each)) for factor, each in terms]
    )


def multiply(out: Array, left: Array, right: Array) -> None:
    """``out`` ← ``left`` · ``right``, element by element."""
    torch.mul(torch.from_numpy(left), torch.from_numpy(right), out=torch.from_numpy(out))


def add(out: Array, other: Array) -> None:
    """``out`` ← ``out`` + ``other``."""
    torch.from_numpy(out).add_(torch.from_numpy(other))


def dot(left: Array, right: Array) -> float:
    """The inner product, in float64."""
    return deterministic_blas.dot(torch.from_numpy(left), torch.from_numpy(right))
