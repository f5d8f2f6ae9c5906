"""What a data server does: batches of a store's samples, from shards that it keeps in memory.

Knows: a store, views of it, a cache of its shards. Does not know: who asks, processes, the order of samples.

Shards are kept as the store has them, read, checked and unpacked, so a hit costs a copy of the rows.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cotswold.data.augment import OWN, Augmentation
from cotswold.data.making import Batch, Maker, Wanted
from cotswold.data.order import Buffered, Rows, Split
from cotswold.data.reader import shuffle_bytes, stored_bytes
from cotswold.data.shard_cache import ShardCache
from cotswold.data.store import Store
from cotswold.errors import UserError
from cotswold.files import MalformedError, take
from cotswold.geometry import Box

_VIEWS = 16
"""Views that are remembered, at most: each has the labels of its split."""
BATCH_BYTES = 1000 << 20
"""Of a batch, at most: it is one message."""
ROWS_MOST = 1 << 20
"""Samples of a batch, at most."""
_SINGLY = 4
"""Rows of one shard up to which each is copied for itself: indices of arrays cost more than that."""
_LARGE = 4096
"""Bytes of a sample from which each is: indices of arrays copy all twice."""


@dataclass(frozen=True)
class View:
    """Which samples are wanted, and how: all that a sample of an epoch depends on besides its row."""

    split: str
    seed: int = 0
    box: Box | None = None
    """A window (y, x)."""
    varying: str = ""
    """JSON of how samples are varied; empty for as they are."""
    store: str = ""
    """The identity of the store; empty for any."""

    def __str__(self) -> str:
        """As JSON, by which `parsed` makes it again."""
        box = None if self.box is None else [list(self.box.start), list(self.box.stop)]
        return json.dumps([self.split, self.seed, box, self.varying, self.store])

    @classmethod
    def parsed(cls, text: str) -> View:
        """The view that a text is; raises UserError for any other text."""
        try:
            split, seed, box, varying, store = json.loads(text)
            window = None if box is None else Box(tuple(map(int, box[0])), tuple(map(int, box[1])))
            return cls(str(split), int(seed), window, str(varying), str(store))
        except (ValueError, TypeError, LookupError) as error:
            raise UserError(f"{text[:80]!r} names no view of samples ({error})") from error

    @property
    def names_own(self) -> bool:
        """Whether a function of somebody's own is named, which `augmentation` would import; UserError as
        there."""
        try:
            tables = json.loads(self.varying) if self.varying else []
            if not isinstance(tables, list):
                raise TypeError("no list")
            return any(each["name"] == OWN for each in tables)
        except (ValueError, TypeError, LookupError) as error:
            raise UserError(f"{self.varying[:80]!r} names no transforms ({error})") from error

    @property
    def augmentation(self) -> Augmentation | None:
        """What varies samples; raises UserError for what is no text of one."""
        return Augmentation.of(json.loads(self.varying)) if self.varying else None


@dataclass(frozen=True)
class SplitTerms:
    """What a reader must know of a split that it does not read itself."""

    samples: int
    shard: int
    buffer: int
    """Samples of the shuffle buffer."""


@dataclass(frozen=True)
class Terms:
    """What is served: enough for a trainer that has no store."""

    store: str
    """Its identity."""
    shape: tuple[int, int, int]
    """(channel, y, x) of a sample."""
    outputs: int
    """Classes, or numbers to predict; 0 without labels."""
    splits: dict[str, SplitTerms]
    varying: str = ""
    """How training samples are varied, where nothing else is asked for."""

    @classmethod
    def of(cls, store: Store, varying: str = "") -> Terms:
        """Those of a store."""
        splits = {
            split: SplitTerms(samples, store.shard(split), shuffle_bytes(store, split) // stored_bytes(store))
            for split, samples in store.splits.items()
            if samples
        }
        shape = store.shape
        return cls(
            store.identity, (shape.channels, shape.height, shape.width), store.outputs, splits, varying
        )

    def __str__(self) -> str:
        splits = {name: vars(each) for name, each in self.splits.items()}
        return json.dumps({**vars(self), "splits": splits}, sort_keys=True)

    @classmethod
    def parsed(cls, text: str) -> Terms:
        """The terms that a text is; raises UserError for any other text."""
        try:
            said = json.loads(text)
            splits = {str(name): SplitTerms(**each) for name, each in take(said, "splits", dict).items()}
            channels, height, width = take(said, "shape", list)
            return cls(
                take(said, "store", str),
                (int(channels), int(height), int(width)),
                take(said, "outputs", int),
                splits,
                take(said, "varying", str),
            )
        except (ValueError, TypeError, LookupError, MalformedError) as error:
            raise UserError(f"data servers of another version: they serve {text[:80]!r} ({error})") from error


class ServedStore:
    """Batches of any view of a store; several threads may ask."""

    def __init__(
        self,
        store: Store,
        cache_bytes: int,
        varying: str = "",
    ) -> None:
        """``varying``: how samples are varied, as a `View` says it. Others may be asked for, but no functions
        of somebody's own, which are called where the server was started with them alone."""
        self.store, self.cache = store, ShardCache(cache_bytes)
        self._by_default = varying
        self._makers: dict[str, Maker] = {}
        self._lock = threading.Lock()

    @cached_property
    def terms(self) -> str:
        """`Terms`, in JSON."""
        return str(Terms.of(self.store, self._by_default))

    def batch(self, view: str, epoch: int, rows: Rows) -> Batch:
        """Samples, images last, and labels, of an epoch. Raises UserError for what is not there, StoreError
        for a damaged chunk."""
        maker = self._maker(view)
        count = len(maker.labels)
        if not 0 < len(rows) <= ROWS_MOST or int(rows.min()) < 0 or int(rows.max()) >= count or epoch < 0:
            raise UserError(
                f"a batch of {len(rows)} rows of epoch {epoch} is none of {maker.split}, which has {count}"
            )
        shape = self.store.shape
        plane = shape.height * shape.width if maker.box is None else maker.box.size
        each = max(1, 4 * shape.channels * plane)
        if each * len(rows) > BATCH_BYTES:
            raise UserError(
                f"a batch of {len(rows)} samples of {each} bytes is too long to send; take "
                f"{BATCH_BYTES // each} samples at most, or read without data servers"
            )
        return maker.batch(Wanted(epoch, rows), self._stored(maker, rows))

    def _maker(self, text: str) -> Maker:
        with self._lock:
            found = self._makers.get(text)
        if found is not None:
            return found
        view = View.parsed(text)
        if view.store not in ("", self.store.identity):
            raise UserError(
                f"{self.store.path} is the store {self.store.identity:.12}, and samples of the store "
                f"{view.store:.12} are wanted"
            )
        if view.split not in self.store.splits:
            raise UserError(f"{self.store.path} has no split {view.split!r}")
        if view.varying != self._by_default and view.names_own:
            raise UserError(
                "data servers call functions of somebody's own only where they were started with them; start "
                "them with the run's recipe"
            )
        maker = Maker(self.store, view.split, view.box, view.augmentation, view.seed)
        with self._lock:
            if len(self._makers) >= _VIEWS:
                del self._makers[next(iter(self._makers))]
            return self._makers.setdefault(text, maker)

    def _stored(self, maker: Maker, rows: Rows) -> NDArray[Any]:
        """Rows as they are stored, in their order."""
        size, sample_bytes = self.store.shard(maker.split), self._sample_bytes(maker)
        order = np.argsort(rows, kind="stable")
        shards, places = np.divmod(rows[order], size)
        starts = np.flatnonzero(np.diff(shards, prepend=-1))
        numbers, into, of = shards[starts].tolist(), order.tolist(), places.tolist()
        found: NDArray[Any] | None = None
        for number, start, stop in zip(
            numbers, starts.tolist(), [*starts[1:].tolist(), len(rows)], strict=True
        ):
            kept = self._shard(maker, number, size, sample_bytes)
            if found is None:
                found = np.empty((len(rows), *kept.shape[1:]), kept.dtype)
            if stop - start <= _SINGLY or sample_bytes >= _LARGE:
                for each in range(start, stop):
                    found[into[each]] = kept[of[each]]
            else:
                found[order[start:stop]] = kept[places[start:stop]]
        assert found is not None, "there are rows"
        return found

    def _sample_bytes(self, maker: Maker) -> int:
        """Of a sample as it is kept."""
        box, shape = maker.read_box, self.store.shape
        plane = shape.height * shape.width if box is None else box.size
        return shape.channels * plane * np.dtype(self.store.transform.preparation.dtype).itemsize

    def _shard(self, maker: Maker, number: int, size: int, sample_bytes: int) -> NDArray[Any]:
        first, last = number * size, min((number + 1) * size, len(maker.labels))
        return self.cache.get(
            (maker.split, number, maker.read_box),
            (last - first) * sample_bytes,
            lambda: maker.read(first, last),
        )


def said(augmentation: Augmentation | None) -> str:
    """What a `View` says of it."""
    return "" if augmentation is None else json.dumps(augmentation.state())


def needed_cache_bytes(store: Store, split: str = "train") -> int:
    """A cache with which a data server reads few shards of a shuffled epoch twice: as many as the shuffle
    buffer has rows of at a time, at most."""
    size, samples, each = store.shard(split), store.splits[split], stored_bytes(store)
    buffer = max(1, shuffle_bytes(store, split) // each)
    shards = Buffered(Split(samples, size, 0), buffer).rows(0) // size
    _, first = np.unique(shards, return_index=True)
    _, last = np.unique(shards[::-1], return_index=True)
    change = np.bincount(first, minlength=samples + 1) - np.bincount(samples - last, minlength=samples + 1)
    return min(int(np.cumsum(change).max()) * size, samples) * each
