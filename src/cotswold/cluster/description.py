"""What servers must know of a run's buckets to hold one, as text that controllers keep.

Knows: how the parameters are cut, settings of updates. Does not know: numbers, who has which bucket.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from cotswold.cluster.arithmetic import Array, NumpyArithmetic
from cotswold.cluster.layout import shards_of
from cotswold.cluster.local_product import LocalProduct
from cotswold.cluster.roles.updates import asynchronous_of
from cotswold.cluster.work import Slot
from cotswold.server.admission import Pass
from cotswold.server.copies.contents import Contents
from cotswold.server.messages import Shard
from cotswold.server.names import bucket_of
from cotswold.server.shard import Server
from cotswold.server.updating import Updates

_DTYPES = ("float32", "float64")
_COUNT = 1 << 17
_NUMBERS = 1 << 40
_SHARDS = 1 << 22
"""Of a run, at most: buckets, parameters and shards of them."""


@dataclass(frozen=True)
class Description:
    """Of one run."""

    run: str
    layout: Sequence[Sequence[object]]
    """Name, rows and columns of each tensor."""
    dtype: str
    shard_bytes: int
    count: int
    """Of buckets, at most: none is empty."""
    updates: Mapping[str, Any]
    """What `asynchronous_of` reads."""
    versions: Sequence[int] = ()
    """Of all shards of a run that goes on, by number; a number anew where it is cut otherwise."""

    @classmethod
    def of(cls, text: str) -> Description:
        """What `text` was; raises ValueError for no such, and for one of more than there can be."""
        try:
            found = cls(**json.loads(text))
            found._check()
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            raise ValueError(f"no description of a run: {error}") from error
        return found

    def _check(self) -> None:
        """Raise ValueError, or what a value of another type raises, before anything is made of it."""
        if self.dtype not in _DTYPES or not 0 < self.count <= _COUNT or not self.shard_bytes > 0:
            raise ValueError(f"{self.count} buckets of {self.dtype!r:.20}")
        sizes = [int(rows) * int(columns) for _, rows, columns in self._rows()]
        blocks = [
            min(rows, -(-size * np.dtype(self.dtype).itemsize // self.shard_bytes))
            for size, (_, rows, _) in zip(sizes, self._rows(), strict=True)
        ]
        if not sizes or sum(sizes) > _NUMBERS or sum(blocks) > _SHARDS:
            raise ValueError(f"{sum(sizes)} numbers in {sum(blocks)} shards")
        if not all(type(each) is int for each in self.versions) or not isinstance(self.run, str):
            raise ValueError("other versions than numbers")
        asynchronous_of(self.updates)

    def _rows(self) -> list[tuple[str, int, int]]:
        found = [Slot(*one) for one in self.layout]  # type: ignore[arg-type]  # as JSON says it
        for each in found:
            are_counts = type(each.rows) is type(each.columns) is int and min(each.rows, each.columns) > 0
            if not are_counts or not isinstance(each.name, str):
                raise ValueError("a tensor of no size")
        return [(each.name, each.rows, each.columns) for each in found]

    @property
    def text(self) -> str:
        """All of it."""
        return json.dumps(vars(replace(self)))

    @cached_property
    def shards(self) -> tuple[Shard, ...]:
        """All, each with its bucket as its server."""
        names = [bucket_of(self.run, number) for number in range(self.count)]
        slots = [Slot(*one) for one in self.layout]  # type: ignore[arg-type]  # as JSON says it
        return shards_of(slots, np.dtype(self.dtype).itemsize, self.shard_bytes, names)

    @property
    def buckets(self) -> tuple[str, ...]:
        """All that are not empty."""
        return tuple(sorted(self.has))

    @cached_property
    def has(self) -> frozenset[str]:
        """The same, to look whether a bucket is one."""
        return frozenset(one.server for one in self.shards)

    def rehearse(self) -> None:
        """Do an update of nobody's numbers: what the first one loads takes longer, on a host that is busy,
        than a server may be silent."""
        rule = asynchronous_of(self.updates).rule
        numbers, *kept = (np.zeros(1, self.dtype) for _ in range(1 + len(rule.keeps)))
        NumpyArithmetic(self.dtype).apply(rule, [Pass(numbers, kept, [(0.0, numbers.copy())], 1)])

    def contents(self, bucket: str) -> Contents[Array]:
        """A bucket in which nothing has happened."""
        arithmetic = NumpyArithmetic(self.dtype)
        server: Server[Array] = Server(bucket, self.shards, arithmetic)
        settings, versions = asynchronous_of(self.updates), self.versions
        products = {tensor: LocalProduct.of(code) for tensor, code in settings.products.items()}
        begun = {each: versions[each] if each < len(versions) else 0 for each in server.numbers}
        updates = Updates(server, settings, arithmetic, arithmetic, begun, products=products)
        return Contents(server, updates, arithmetic)
