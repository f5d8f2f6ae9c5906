"""Description of a run: the text that controllers keep and servers need to create its buckets.

Knows: the partition of the parameters, settings of updates. Does not know: numbers, groups.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from cotswold.optim.schedule import SampleSchedule
from cotswold.paramserver.core.update_server import UpdateServer
from cotswold.paramserver.runtime.update_loop import settings_from_dict
from cotswold.replication.replica.bucket_state import BucketState
from cotswold.shards.core.admission import ShardUpdates
from cotswold.shards.core.shard_server import ShardServer
from cotswold.shards.runtime.arithmetic import Array, NumpyArithmetic
from cotswold.shards.runtime.layout import split_into_shards
from cotswold.shards.runtime.local_product import LocalProduct
from cotswold.shards.runtime.work import TensorSlot
from cotswold.wire import Shard
from cotswold.wire.names import bucket_of

_DTYPES = ("float32", "float64")
_COUNT = 1 << 17
_NUMBERS = 1 << 40
_SHARDS = 1 << 22
"""Maximum numbers per run: of buckets, parameters and shards."""
MAX_NAME_CHARS = 100
"""Maximum length of a run's name for people."""
_MAX_INTEGER = 1 << 62
"""Maximum of any number, so that messages can carry it."""


@dataclass(frozen=True)
class Description:
    """Description of one run."""

    run: str
    layout: Sequence[Sequence[object]]
    """Name, rows and columns of each tensor."""
    dtype: str
    shard_bytes: int
    count: int
    """Maximum number of buckets; none is empty."""
    updates: Mapping[str, Any]
    """Settings read by `settings_from_dict`."""
    versions: Sequence[int] = ()
    """Versions of all shards of a resumed run, by number; a new number if it is partitioned differently."""
    name: str = ""
    """Name of the run for people: that of its recipe."""

    @classmethod
    def of(cls, text: str) -> Description:
        """Parse a description. Raises ValueError if it is malformed or exceeds a limit."""
        try:
            found = cls(**json.loads(text))
            found._check()
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            raise ValueError(f"malformed description of a run: {error}") from error
        return found

    def _check(self) -> None:
        """Raise ValueError, or the error of a value with a wrong type, before anything is created from it."""
        are_counts = _are_counts(self.count, self.shard_bytes)
        if self.dtype not in _DTYPES or not are_counts or self.count > _COUNT:
            raise ValueError(f"no bucket count and float type: {self.count!r:.20}, {self.dtype!r:.20}")
        rows = self._rows()
        sizes = [each.rows * each.columns for each in rows]
        blocks = [
            min(each.rows, -(-size * np.dtype(self.dtype).itemsize // self.shard_bytes))
            for size, each in zip(sizes, rows, strict=True)
        ]
        if not sizes or sum(sizes) > _NUMBERS or sum(blocks) > _SHARDS:
            raise ValueError(f"too many: {sum(sizes)} numbers in {sum(blocks)} shards")
        if not all(type(each) is int and 0 <= each <= _MAX_INTEGER for each in self.versions):
            raise ValueError("versions must be numbers")
        if not _is_text(self.run):
            raise ValueError("run must be a name")
        if self.name != "" and not (_is_text(self.name) and len(self.name) <= MAX_NAME_CHARS):
            raise ValueError("name must be that of a recipe")
        self._check_updates(rows)

    def _rows(self) -> list[TensorSlot]:
        found = [TensorSlot(*one) for one in self.layout]  # type: ignore[arg-type]  # JSON types
        if not all(_are_counts(each.rows, each.columns) and _is_text(each.name) for each in found):
            raise ValueError("each tensor needs a name and a size")
        if len({each.name for each in found}) < len(found):
            raise ValueError("two tensors have the same name")
        return found

    def _check_updates(self, rows: Sequence[TensorSlot]) -> None:
        """Check all settings that servers read while they apply updates."""
        found = settings_from_dict(self.updates)
        if found.run != self.run or not _is_text(found.name) or found.name in found.rule.state_names:
            raise ValueError(f"updates of an unexpected vector {found.name!r:.20} or run {found.run!r:.40}")
        room = found.room
        if not _are_counts(found.item_bytes, room.shard_bytes, room.all_bytes):
            raise ValueError("room must be counts of bytes")
        columns = {each.name: each.columns for each in rows}
        if not _are_counts(*found.columns.values()) or dict(found.columns) != columns:
            raise ValueError("columns must be those of the tensors")
        if type(found.may_repeat_samples) is not bool:
            raise ValueError(
                f"may_repeat_samples must be true or false, got {found.may_repeat_samples!r:.20}"
            )
        if type(found.staleness.bound) is not int or found.staleness.bound > _MAX_INTEGER:
            raise ValueError("the bound of staleness must be a number")
        if not found.products.keys() <= columns.keys():
            raise ValueError("products must name tensors")
        _check_schedule(found.schedule)
        start = 0
        for each in rows:
            if each.name in found.products:
                _check_product(found.products[each.name], each, start)
            start += each.rows * each.columns

    @property
    def text(self) -> str:
        """The description as text."""
        return json.dumps(vars(replace(self)))

    @cached_property
    def shards(self) -> tuple[Shard, ...]:
        """All shards, each with its bucket in place of a server."""
        names = [bucket_of(self.run, number) for number in range(self.count)]
        slots = [TensorSlot(*one) for one in self.layout]  # type: ignore[arg-type]  # as JSON says it
        return split_into_shards(slots, np.dtype(self.dtype).itemsize, self.shard_bytes, names)

    @property
    def buckets(self) -> tuple[str, ...]:
        """All buckets, without empty ones."""
        return tuple(sorted(self.has))

    @cached_property
    def has(self) -> frozenset[str]:
        """The same buckets, as a set."""
        return frozenset(one.server for one in self.shards)

    def check(self) -> None:
        """Apply one update to dummy numbers: on a busy host, the imports of a first update may take longer
        than a server may be silent."""
        rule = settings_from_dict(self.updates).rule
        numbers, *kept = (np.zeros(1, self.dtype) for _ in range(1 + len(rule.state_names)))
        NumpyArithmetic(self.dtype).apply(rule, [ShardUpdates(numbers, kept, [(0.0, numbers.copy())], 1)])

    def contents(self, bucket: str) -> BucketState[Array]:
        """Return the initial contents of a bucket."""
        arithmetic = NumpyArithmetic(self.dtype)
        server: ShardServer[Array] = ShardServer(bucket, self.shards, arithmetic)
        settings, versions = settings_from_dict(self.updates), self.versions
        products = {tensor: LocalProduct.of(code) for tensor, code in settings.products.items()}
        begun = {each: versions[each] if each < len(versions) else 0 for each in server.numbers}
        updates = UpdateServer(server, settings, arithmetic, arithmetic, begun, products=products)
        return BucketState(server, updates, arithmetic)


def display_name(text: str) -> str:
    """Return the run's name for people in a description; empty if it has none."""
    try:
        name = json.loads(text)["name"]
        return name[:MAX_NAME_CHARS] if _is_text(name) else ""
    except (TypeError, ValueError, LookupError, RecursionError):
        return ""


def _are_counts(*values: object) -> bool:
    """True if all are positive integers, neither fractions nor booleans."""
    return all(type(each) is int and 0 < each <= _MAX_INTEGER for each in values)


def _is_text(value: object) -> bool:
    """True if the value is a name that can be encoded; raises ValueError for a lone surrogate."""
    return isinstance(value, str) and bool(value.encode())


def _check_schedule(schedule: SampleSchedule) -> None:
    is_rising = type(schedule.warmup) in (int, float) and 0 <= schedule.warmup <= 1
    if not is_rising or not _are_counts(schedule.samples, schedule.batch, schedule.epochs):
        raise ValueError("the schedule has no steps")
    schedule.rate(1.0, 0)


def _check_product(numbers: Sequence[int], slot: TensorSlot, start: int) -> None:
    """Raise ValueError for a layer whose filters do not match the tensor, which begins at ``start``."""
    if not all(type(each) is int and 0 <= each <= _MAX_INTEGER for each in numbers):
        raise ValueError(f"{slot.name!r:.40} has a geometry with other values than numbers")
    product = LocalProduct.of(numbers)
    product.errors(0, slot.rows), product.activations(0, slot.rows)
    if product.start != start or product.layer.parameters != slot.rows * slot.columns:
        raise ValueError(f"{slot.name!r:.40} has the geometry of another tensor")
