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
        """What `text` was; raises ValueError or TypeError for no such."""
        return cls(**json.loads(text))

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
        return tuple(sorted({one.server for one in self.shards}))

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
