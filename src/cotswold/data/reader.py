"""Batches for training, read ahead in the background.

Knows: a store, an order, a thread. Does not know: what the batches are for.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cotswold.data.order import Group, Order
from cotswold.data.store import Store
from cotswold.errors import UserError
from cotswold.geometry import Box

Batch = tuple[torch.Tensor, torch.Tensor]
"""Pictures, float32 (image, channel, y, x) with the image contiguous ("images last"), and labels, int64
(image,)."""

_BUFFER_BYTES = 16 << 20
"""Small, so that the first batch of an epoch does not wait for a whole set to be read."""
_AHEAD = 8
"""Batches that wait at most."""
_POLL_SECONDS = 0.2


class Reader:
    """Batches of one split, epoch after epoch; the order depends on ``(seed, epoch)`` alone.

    ``for pictures, labels in reader`` hands out what is left of the current epoch; the next loop is the next
    epoch. ``keep_last``: whether an epoch ends with a smaller batch or leaves those pictures out (others each
    epoch). ``box``: a window (y, x) of the plane, maybe an empty one; neither the order of the pictures nor
    the state depends on it. ``buffer_bytes`` bounds the pictures, counted whole, that are shuffled together;
    twice as many are held. Reading in the background never changes what is handed out: `state_dict` counts
    what was handed out, and a reader that loads it goes on with the same bits.
    """

    def __init__(
        self,
        store: Store,
        split: str,
        batch: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        keep_last: bool = False,
        box: Box | None = None,
        buffer_bytes: int = _BUFFER_BYTES,
    ) -> None:
        if batch < 1:
            raise UserError(f"a batch of {batch} pictures is none; give 1 or more")
        self._store, self._split, self._batch, self._box = store, split, batch, box
        self._labels = store.labels(split)
        pictures = len(self._labels)
        self._keep_last = keep_last or pictures < batch
        # of a whole picture, so that whoever reads a window of it has the same order
        bytes_each = store.shape.size * np.dtype(store.transform.preparation.dtype).itemsize
        self._order = Order(pictures, store.shard(split), max(1, buffer_bytes // bytes_each), seed, shuffle)
        self.epoch = 0
        """The epoch that the next batch belongs to, from 0."""
        self.position = 0
        """Batches of that epoch that were handed out."""
        self.waited_seconds = 0.0
        """How long the caller has waited for batches in all."""
        self._ahead: _Ahead | None = None

    def __len__(self) -> int:
        """Batches in one epoch."""
        pictures = self._order.pictures
        return -(-pictures // self._batch) if self._keep_last else pictures // self._batch

    @property
    def pictures(self) -> int:
        """Pictures in the split."""
        return self._order.pictures

    def __iter__(self) -> Iterator[Batch]:
        epoch = self.epoch
        while self.epoch == epoch:
            yield self.next()

    def next(self) -> Batch:
        """The next batch, whatever epoch it belongs to. Raises StoreError for a damaged chunk."""
        if self._ahead is None:
            self._ahead = _Ahead(self._batches(self.epoch, self.position))
        begun = time.perf_counter()
        try:
            batch = self._ahead.get()
        except Exception:
            self.close()  # its thread has ended; the next call begins anew at the same place
            raise
        self.waited_seconds += time.perf_counter() - begun
        self.position += 1
        if self.position == len(self):
            self.epoch, self.position = self.epoch + 1, 0
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Where the reader stands, as JSON can keep it."""
        return {**self._nature(), "epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where another reader stood. Raises UserError if it read something else or otherwise."""
        different = [key for key, value in self._nature().items() if state.get(key) != value]
        if different:
            raise UserError(
                f"the reader's state belongs to another {' and '.join(different)}; resume with the same"
            )
        self.close()
        self.epoch, self.position = int(state["epoch"]), int(state["position"])

    def close(self) -> None:
        """Stop reading ahead; the next batch starts it again."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def _nature(self) -> dict[str, Any]:
        return {
            "store": self._store.identity,
            "split": self._split,
            "batch": self._batch,
            "seed": self._order.seed,
            "shuffle": self._order.shuffle,
            "buffer": self._order.buffer,
            "keep_last": self._keep_last,
        }

    def _batches(self, epoch: int, position: int) -> Iterator[Batch]:
        """Batches without end, from a position of an epoch."""
        while True:
            skip, rows = position * self._batch, _Rows()
            left = len(self) - position
            for group in self._order.epoch(epoch):
                if skip >= len(group.order):
                    skip -= len(group.order)
                    continue
                rows.add(*self._read(group), group.order[skip:])
                skip = 0
                while left and len(rows) >= self._batch:
                    yield self._made(*rows.take(self._batch))
                    left -= 1
            if left:
                yield self._made(*rows.take(len(rows)))
            epoch, position = epoch + 1, 0

    def _read(self, group: Group) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The pictures of a group as they are stored, and their labels."""
        parts = [self._store.read_stored(self._split, *rows, self._box) for rows in group.ranges]
        return np.concatenate(parts), np.concatenate([self._labels[slice(*rows)] for rows in group.ranges])

    def _made(self, stored: NDArray[Any], labels: NDArray[np.int64]) -> Batch:
        """Images last, float32."""
        images = len(stored)
        last = np.ascontiguousarray(stored.reshape(images, math.prod(stored.shape[1:])).T)
        values = self._store.transform.restored(last).reshape(*stored.shape[1:], images)
        plane = np.ascontiguousarray(values.transpose(1, 2, 0, 3))
        return torch.from_numpy(plane).permute(3, 2, 0, 1), torch.from_numpy(labels.copy())


class _Rows:
    """Pictures that were read and not yet handed out, in the order in which they will be."""

    def __init__(self) -> None:
        self._groups: list[tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]] = []

    def __len__(self) -> int:
        return sum(len(order) for _, _, order in self._groups)

    def add(self, stored: NDArray[Any], labels: NDArray[np.int64], order: NDArray[np.int64]) -> None:
        self._groups.append((stored, labels, order))

    def take(self, count: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        pictures, marks = [], []
        while count:
            stored, labels, order = self._groups.pop(0)
            now, later = order[:count], order[count:]
            pictures.append(stored[now])
            marks.append(labels[now])
            count -= len(now)
            if len(later):
                self._groups.insert(0, (stored, labels, later))
        return np.concatenate(pictures), np.concatenate(marks)


class _Ahead:
    """A thread that keeps a few batches ready, and hands on what goes wrong in it."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self._ready: queue.Queue[Batch | Exception] = queue.Queue(_AHEAD)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)
        self._thread.start()

    def get(self) -> Batch:
        found = self._ready.get()
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            for batch in self._batches:
                if not self._put(batch):
                    return
        except Exception as error:  # raised again where the batch was asked for
            self._put(error)

    def _put(self, item: Batch | Exception) -> bool:
        while not self._stop.is_set():
            try:
                self._ready.put(item, timeout=_POLL_SECONDS)
            except queue.Full:
                continue
            return True
        return False
