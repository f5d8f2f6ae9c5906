"""Batches for data servers: samples of a store, from shards cached in memory.

Knows: a store, views of it, a cache of its shards. Does not know: clients, processes, the order of samples.

Shards are cached as stored, after reading, checking and decompressing, so a hit costs a copy of the rows.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cotswold.data.augment import CUSTOM, Augmentation
from cotswold.data.loading.batching import Batch, BatchBuilder, BatchRows
from cotswold.data.loading.order import Buffered, Rows, Split
from cotswold.data.loading.reader import shuffle_bytes, stored_bytes
from cotswold.data.loading.shard_cache import ShardCache, Shards
from cotswold.data.store.store import Store
from cotswold.errors import UserError
from cotswold.files import MalformedError, take
from cotswold.geometry import Box

_VIEWS = 16
"""Maximum number of cached views; each holds the labels of its split."""
BATCH_BYTES = 1000 << 20
"""Maximum size of a batch, which is one message."""
ROWS_MOST = 1 << 20
"""Maximum number of samples in a batch."""


@dataclass(frozen=True)
class DatasetView:
    """A view of a store: everything except the row that determines a sample of an epoch."""

    split: str
    seed: int = 0
    box: Box | None = None
    """A window (y, x); None for whole samples."""
    augmentation_json: str = ""
    """The augmentation as JSON; empty for none."""
    store: str = ""
    """Identity of the store; empty for any."""

    def __str__(self) -> str:
        """Return the view as JSON for `parsed`."""
        box = None if self.box is None else [list(self.box.start), list(self.box.stop)]
        return json.dumps([self.split, self.seed, box, self.augmentation_json, self.store])

    @classmethod
    def parsed(cls, text: str) -> DatasetView:
        """Parse a view. Raises UserError for malformed text."""
        try:
            split, seed, box, varying, store = json.loads(text)
            window = None if box is None else Box(tuple(map(int, box[0])), tuple(map(int, box[1])))
            return cls(str(split), int(seed), window, str(varying), str(store))
        except (ValueError, TypeError, LookupError) as error:
            raise UserError(f"{text[:80]!r} is not a view of samples ({error})") from error

    @property
    def uses_custom_function(self) -> bool:
        """True if the augmentation names a user-defined function, which `augmentation` would import.

        Raises UserError for malformed text.
        """
        try:
            tables = json.loads(self.augmentation_json) if self.augmentation_json else []
            if not isinstance(tables, list):
                raise TypeError("no list")
            return any(each["name"] == CUSTOM for each in tables)
        except (ValueError, TypeError, LookupError) as error:
            raise UserError(
                f"{self.augmentation_json[:80]!r} is not a list of transforms ({error})"
            ) from error

    @property
    def augmentation(self) -> Augmentation | None:
        """The augmentation, or None. Raises UserError for malformed text."""
        return Augmentation.of(json.loads(self.augmentation_json)) if self.augmentation_json else None


@dataclass(frozen=True)
class SplitInfo:
    """Sizes of a split for a reader without the store."""

    samples: int
    shard: int
    buffer: int
    """Size of the shuffle buffer, samples."""


@dataclass(frozen=True)
class DatasetInfo:
    """Description of the served data, sufficient for a trainer without the store."""

    store: str
    """Identity of the store."""
    shape: tuple[int, int, int]
    """Shape (channel, y, x) of a sample."""
    outputs: int
    """Number of classes, or of values in a regression target; 0 without labels."""
    splits: dict[str, SplitInfo]
    augmentation_json: str = ""
    """The default augmentation of training samples."""

    @classmethod
    def of(cls, store: Store, varying: str = "") -> DatasetInfo:
        """Return the description of a store."""
        splits = {
            split: SplitInfo(samples, store.shard(split), shuffle_bytes(store, split) // stored_bytes(store))
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
    def parsed(cls, text: str) -> DatasetInfo:
        """Parse a description. Raises UserError for malformed text."""
        try:
            said = json.loads(text)
            splits = {str(name): SplitInfo(**each) for name, each in take(said, "splits", dict).items()}
            channels, height, width = take(said, "shape", list)
            return cls(
                take(said, "store", str),
                (int(channels), int(height), int(width)),
                take(said, "outputs", int),
                splits,
                take(said, "augmentation_json", str),
            )
        except (ValueError, TypeError, LookupError, MalformedError) as error:
            raise UserError(
                f"the data servers have another version: they serve {text[:80]!r} ({error})"
            ) from error


class ServedStore:
    """Batches of any view of a store; thread-safe."""

    def __init__(
        self,
        store: Store,
        cache_bytes: int,
        varying: str = "",
    ) -> None:
        """``varying`` is the default augmentation, in the format of `DatasetView`.

        Clients may request other augmentations, but no user-defined functions: a server calls only those with
        which it was started.
        """
        self.store, self.cache = store, ShardCache(cache_bytes)
        self._default_augmentation = varying
        self._makers: dict[str, tuple[BatchBuilder, Shards]] = {}
        self._lock = threading.Lock()

    @cached_property
    def terms(self) -> str:
        """`DatasetInfo` as JSON."""
        return str(DatasetInfo.of(self.store, self._default_augmentation))

    def batches(self, view: str, epoch: int, rows: Rows, out: memoryview | None = None) -> Batch:
        """Build batches of an epoch from their rows (batch, image), as `BatchBuilder.batches` does.

        Raises UserError for an invalid request and StoreError for a damaged chunk.
        """
        maker, shards = self._maker(view)
        count = len(maker.labels)
        if not 0 < rows.size <= ROWS_MOST or int(rows.min()) < 0 or int(rows.max()) >= count or epoch < 0:
            raise UserError(
                f"a batch of {rows.size} rows of epoch {epoch} is not in {maker.split}, which has {count}"
            )
        shape = self.store.shape
        plane = shape.height * shape.width if maker.box is None else maker.box.size
        each = max(1, 4 * shape.channels * plane)
        if each * rows.size > BATCH_BYTES:
            raise UserError(
                f"a batch of {rows.size} samples of {each} bytes is too large to send; take "
                f"at most {BATCH_BYTES // each} samples, or read without data servers"
            )
        stored = self.cache.rows(shards, rows.reshape(-1), maker.read)
        return maker.batches(BatchRows(epoch, rows), stored, out)

    def _maker(self, text: str) -> tuple[BatchBuilder, Shards]:
        with self._lock:
            found = self._makers.get(text)
        if found is not None:
            return found
        view = DatasetView.parsed(text)
        if view.store not in ("", self.store.identity):
            raise UserError(
                f"{self.store.path} is the store {self.store.identity:.12}, but samples of the store "
                f"{view.store:.12} were requested"
            )
        if view.split not in self.store.splits:
            raise UserError(f"{self.store.path} has no split {view.split!r}")
        if view.augmentation_json != self._default_augmentation and view.uses_custom_function:
            raise UserError(
                "data servers call user-defined functions only if they were started with them; start "
                "them with the run's recipe"
            )
        maker = BatchBuilder(self.store, view.split, view.box, view.augmentation, view.seed)
        with self._lock:
            if len(self._makers) >= _VIEWS:
                del self._makers[next(iter(self._makers))]
            return self._makers.setdefault(text, (maker, shards_of(self.store, view.split, maker.read_box)))


def shards_of(store: Store, split: str, box: Box | None) -> Shards:
    """Return the description of cached shards for a split and window."""
    shape = store.shape
    plane = (shape.height, shape.width) if box is None else box.shape
    dtype = np.dtype(store.transform.preparation.dtype).str
    return Shards(split, box, store.splits[split], store.shard(split), (shape.channels, *plane), dtype)


def augmentation_to_json(augmentation: Augmentation | None) -> str:
    """Return an augmentation in the format of `DatasetView`."""
    return "" if augmentation is None else json.dumps(augmentation.state())


def needed_cache_bytes(store: Store, split: str = "train") -> int:
    """Return the cache size at which a data server rarely reads a shard of a shuffled epoch twice.

    The size is the maximum number of shards that have rows in the shuffle buffer at the same time.
    """
    size, samples, each = store.shard(split), store.splits[split], stored_bytes(store)
    buffer = max(1, shuffle_bytes(store, split) // each)
    shards = Buffered(Split(samples, size, 0), buffer).rows(0) // size
    _, first = np.unique(shards, return_index=True)
    _, last = np.unique(shards[::-1], return_index=True)
    change = np.bincount(first, minlength=samples + 1) - np.bincount(samples - last, minlength=samples + 1)
    return int(np.cumsum(change).max()) * shards_of(store, split, None).slot_bytes
