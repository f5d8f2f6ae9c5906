"""Training batches, read ahead in the background.

Knows: a store, an order, a thread. Does not know: the use of the batches.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np

from cotswold.data.loading.batch_source import BatchSource, StoreBatchSource
from cotswold.data.loading.batching import Augment, Batch, BatchBuilder
from cotswold.data.loading.order import Buffered, Rows, Split, buffer_samples
from cotswold.data.loading.prefetch import Prefetcher
from cotswold.data.loading.shuffle_buffer import Epoch
from cotswold.data.store.store import Store
from cotswold.errors import UserError
from cotswold.files import MalformedError, take
from cotswold.geometry import Box

_WAITING_BATCHES = 8
"""Maximum number of batches that wait."""


class Reader:
    """Batches of one split, epoch after epoch, in an order that depends only on ``(seed, epoch)``.

    ``for samples, labels in reader`` yields the rest of the current epoch; the next loop is the next epoch.
    Samples are float32 (image, channel, y, x), labels int64 (image,) or targets float32 (image, target).

    Prefetching never changes the result: `state_dict` counts returned batches, and a reader that loads the
    state continues with identical bits, in the order named by the state. In addition to the shuffle buffer, a
    shard and a few batches are in memory.

    Args:
        store: The store.
        split: Name of the split.
        batch: Samples in a batch.
        seed: Seed of shuffling and augmentation.
        shuffle: Shuffle each epoch; False reads in stored order.
        keep_last: End an epoch with a smaller batch; otherwise those samples, different ones in each epoch,
            are left out.
        box: A window (y, x) of the plane, possibly empty. Order and state do not depend on it. [whole]
        buffer_bytes: Size of the shuffle buffer, rounded to whole stored samples. The default mixes as
            `cotswold.data.loading.order` describes, with at most 512 MiB.
        augmentation: Augmentation; it makes new variants in each epoch.
        feed: Builds the batches in this order in place of this process.
        part: The samples of each batch that are read and returned, from the first to before the second;
            all batches must be complete. Order and state do not depend on it. [all]

    Raises:
        UserError: if ``batch`` is below 1.
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
        buffer_bytes: int | None = None,
        augmentation: Augment | None = None,
        feed: BatchSource | None = None,
        part: tuple[int, int] | None = None,
    ) -> None:
        if batch < 1:
            raise UserError(f"batch must be at least 1, got {batch}")
        self._store, self._split, self._batch, self._augmentation = store, split, batch, augmentation
        samples = store.splits[split]
        self._keep_last = keep_last or samples < batch
        self._part = (0, batch) if part is None else part
        if part is not None and (self._keep_last or not 0 <= part[0] < part[1] <= batch):
            raise UserError(
                f"samples {part[0]} to {part[1]} are no part of batches of {batch} of {samples} samples; "
                "give a part of complete batches"
            )
        self._rows = Split(samples, store.shard(split), seed, shuffle)
        if buffer_bytes is None:
            buffer_bytes = shuffle_bytes(store, split)
        buffer = max(1, buffer_bytes // stored_bytes(store))
        self._order = Buffered(self._rows, buffer)
        self._feed = feed or StoreBatchSource(
            BatchBuilder(store, split, box, augmentation, seed), self._rows, self._part[1] - self._part[0]
        )
        self.epoch = 0
        """Epoch of the next batch, from 0."""
        self.position = 0
        """Number of batches of this epoch returned so far."""
        self.waited_seconds = 0.0
        """Total time for which the caller has waited for batches, seconds."""
        self.rows: list[int] = []
        """The rows of the split in the batch returned last."""
        self._prefetcher: Prefetcher[Batch] | None = None
        self._drawn: dict[int, tuple[int, Rows]] = {}
        """For epochs that have begun, the first batch drawn and the rows from there on."""

    def __len__(self) -> int:
        """Return the number of batches in one epoch."""
        samples = self.samples
        return -(-samples // self._batch) if self._keep_last else samples // self._batch

    @property
    def samples(self) -> int:
        """Number of samples in the split."""
        return self._rows.samples

    def __iter__(self) -> Iterator[Batch]:
        epoch = self.epoch
        while self.epoch == epoch:
            yield self.next()

    def next(self) -> Batch:
        """Return the next batch, across epochs. Raises StoreError for a damaged chunk."""
        if self._prefetcher is None:
            # computing the order of an epoch takes as long as many batches, so it is prefetched
            self._drawn = {}
            epochs = Prefetcher(self._epochs(self.epoch, self.position, self._drawn), 1)

            def stop() -> None:
                epochs.close(wait=False)
                self._feed.stop()

            self._prefetcher = Prefetcher(self._feed.batches(self._order, epochs), _WAITING_BATCHES, stop)
        begun = time.perf_counter()
        try:
            batch = next(self._prefetcher)
        except BaseException:
            self.close()  # its thread has ended; the next call restarts at the same position
            raise
        self.waited_seconds += time.perf_counter() - begun
        first, rows = self._drawn[self.epoch]
        size = self._part[1] - self._part[0]
        self.rows = rows[(self.position - first) * size :][:size].tolist()
        self.position += 1
        if self.position == len(self):
            del self._drawn[self.epoch]
            self.epoch, self.position = self.epoch + 1, 0
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the reader, as JSON values."""
        order = {"order": self._order.name, "buffer": self._order.buffer}
        return {**self._settings(), **order, "epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume at the position and in the order of another reader, even if its buffer had another size.

        Args:
            state: A value of `state_dict`.

        Raises:
            UserError: if the state is malformed, or belongs to another store or other settings.
        """
        nature = {"augmentation": None, **self._settings()}
        different = [key for key, value in nature.items() if state.get(key) != value]
        if different:
            raise UserError(
                f"the reader's state has another {' and '.join(different)}; resume with the same settings"
            )
        if (order := state.get("order")) != Buffered.name:
            raise UserError(f"the reader's state names an order {order!r}; resume with a later version")
        try:
            epoch, position, buffer = (take(state, name, int) for name in ("epoch", "position", "buffer"))
        except MalformedError as error:
            raise UserError(f"the reader's state {error}; resume from another checkpoint") from error
        if epoch < 0 or not 0 <= position < len(self) or buffer < 1:
            raise UserError(
                f"the reader's state has position {position} of {len(self)} batches in epoch {epoch}; resume "
                "from another checkpoint"
            )
        self.close()
        self._order = Buffered(self._rows, buffer)
        self.epoch, self.position = epoch, position

    def close(self) -> None:
        """Stop prefetching; the next batch starts it again."""
        if self._prefetcher is not None:
            self._prefetcher.close()
            self._prefetcher = None

    def _settings(self) -> dict[str, Any]:
        """Return the settings with which a state must agree."""
        return {
            "store": self._store.identity,
            "split": self._split,
            "batch": self._batch,
            "seed": self._rows.seed,
            "shuffle": self._rows.shuffle,
            "keep_last": self._keep_last,
            **({} if self._augmentation is None else {"augmentation": self._augmentation.state()}),
        }

    def _epochs(
        self, epoch: int, position: int, drawn: dict[int, tuple[int, Rows]]
    ) -> Generator[Epoch, None, None]:
        """Yield epochs endlessly, from a position in the first, and enter them in ``drawn``."""
        last = self.samples if self._keep_last else len(self) * self._batch
        while True:
            rows = self._order.rows(epoch)[position * self._batch : last]
            first, stop = self._part
            if stop - first < self._batch:
                rows = rows.reshape(-1, self._batch)[:, first:stop].reshape(-1)
            drawn[epoch] = position, rows
            yield Epoch(epoch, rows, stop - first)
            epoch, position = epoch + 1, 0


def shuffle_bytes(store: Store, split: str) -> int:
    """Return the default size of the shuffle buffer of a split, in bytes, all windows together.

    Args:
        store: The store.
        split: Name of the split.
    """
    each = stored_bytes(store)
    return each * buffer_samples(store.splits[split], store.shard(split), each)


def stored_bytes(store: Store) -> int:
    """Return the bytes of a whole stored sample, so that readers of a window use the same order."""
    return store.shape.size * np.dtype(store.transform.preparation.dtype).itemsize
