"""Batches for training, read ahead in the background.

Knows: a store, an order, a thread. Does not know: what the batches are for.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np

from cotswold.data.loading.batching import Batch, Maker, Varying
from cotswold.data.loading.feed import Feed, StoreFeed
from cotswold.data.loading.order import Buffered, Split, buffer_samples
from cotswold.data.loading.prefetch import Ahead
from cotswold.data.loading.shuffle_buffer import Epoch
from cotswold.data.store.store import Store
from cotswold.errors import UserError
from cotswold.files import MalformedError, take
from cotswold.geometry import Box

_AHEAD = 8
"""Batches that wait at most."""


class Reader:
    """Batches of one split, epoch after epoch; the order depends on ``(seed, epoch)`` alone.

    ``for samples, labels in reader`` hands out what is left of the current epoch; the next loop is the next
    epoch. ``keep_last``: whether an epoch ends with a smaller batch or leaves those samples out (others each
    epoch). ``box``: a window (y, x) of the plane, maybe an empty one; neither the order of the samples nor
    the state depends on it. ``buffer_bytes``: the shuffle buffer, counted in whole samples as they are
    stored; by default what mixes as `cotswold.data.loading.order` tells, 512 MiB at most. Beside it a
    shard and a few
    batches are held. ``varying``: what makes variants of samples, another one in each epoch; ``feed``: who
    makes batches of this order instead of this process.

    Reading in the background never changes what is handed out: `state_dict` counts what was handed out, and a
    reader that loads it goes on with the same bits, in the order that the state names.
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
        varying: Varying | None = None,
        feed: Feed | None = None,
    ) -> None:
        if batch < 1:
            raise UserError(f"a batch of {batch} samples is none; give 1 or more")
        self._store, self._split, self._batch, self._varying = store, split, batch, varying
        samples = store.splits[split]
        self._keep_last = keep_last or samples < batch
        self._rows = Split(samples, store.shard(split), seed, shuffle)
        if buffer_bytes is None:
            buffer_bytes = shuffle_bytes(store, split)
        buffer = max(1, buffer_bytes // stored_bytes(store))
        self._order = Buffered(self._rows, buffer)
        self._feed = feed or StoreFeed(Maker(store, split, box, varying, seed), self._rows, batch)
        self.epoch = 0
        """The epoch that the next batch belongs to, from 0."""
        self.position = 0
        """Batches of that epoch that were handed out."""
        self.waited_seconds = 0.0
        """How long the caller has waited for batches in all."""
        self._ahead: Ahead[Batch] | None = None

    def __len__(self) -> int:
        """Batches in one epoch."""
        samples = self.samples
        return -(-samples // self._batch) if self._keep_last else samples // self._batch

    @property
    def samples(self) -> int:
        """Samples in the split."""
        return self._rows.samples

    def __iter__(self) -> Iterator[Batch]:
        epoch = self.epoch
        while self.epoch == epoch:
            yield self.next()

    def next(self) -> Batch:
        """The next batch, whatever epoch it belongs to. Raises StoreError for a damaged chunk."""
        if self._ahead is None:
            # the order of an epoch takes as long as many batches, and is there before it is wanted
            epochs = Ahead(self._epochs(self.epoch, self.position), 1)

            def stop() -> None:
                epochs.close(wait=False)
                self._feed.stop()

            self._ahead = Ahead(self._feed.batches(self._order, epochs), _AHEAD, stop)
        begun = time.perf_counter()
        try:
            batch = next(self._ahead)
        except BaseException:
            self.close()  # its thread has ended; the next call begins anew at the same place
            raise
        self.waited_seconds += time.perf_counter() - begun
        self.position += 1
        if self.position == len(self):
            self.epoch, self.position = self.epoch + 1, 0
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Where the reader stands, as JSON can keep it."""
        order = {"order": self._order.name, "buffer": self._order.buffer}
        return {**self._nature(), **order, "epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where another reader stood, with the shuffle buffer of that reader.

        Raises UserError if the other read something else or otherwise, or if that is no state.
        """
        nature = {"augmentation": None, **self._nature()}
        different = [key for key, value in nature.items() if state.get(key) != value]
        if different:
            raise UserError(
                f"the reader's state belongs to another {' and '.join(different)}; resume with the same"
            )
        if (order := state.get("order")) != Buffered.name:
            raise UserError(f"the reader's state names an order {order!r}; resume with a later version")
        try:
            epoch, position, buffer = (take(state, name, int) for name in ("epoch", "position", "buffer"))
        except MalformedError as error:
            raise UserError(f"the reader's state {error}; resume from another checkpoint") from error
        if epoch < 0 or not 0 <= position < len(self) or buffer < 1:
            raise UserError(
                f"the reader's state stands at batch {position} of {len(self)} in epoch {epoch}; resume from "
                "another checkpoint"
            )
        self.close()
        self._order = Buffered(self._rows, buffer)
        self.epoch, self.position = epoch, position

    def close(self) -> None:
        """Stop reading ahead; the next batch starts it again."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def _nature(self) -> dict[str, Any]:
        """What a state must agree with."""
        return {
            "store": self._store.identity,
            "split": self._split,
            "batch": self._batch,
            "seed": self._rows.seed,
            "shuffle": self._rows.shuffle,
            "keep_last": self._keep_last,
            **({} if self._varying is None else {"augmentation": self._varying.state()}),
        }

    def _epochs(self, epoch: int, position: int) -> Generator[Epoch, None, None]:
        """Epochs without end, from a position of one."""
        last = self.samples if self._keep_last else len(self) * self._batch
        while True:
            rows = self._order.rows(epoch)[position * self._batch : last]
            yield Epoch(epoch, rows, self._batch)
            epoch, position = epoch + 1, 0


def shuffle_bytes(store: Store, split: str) -> int:
    """Bytes of the shuffle buffer in which samples of a split are mixed by default, all windows together."""
    each = stored_bytes(store)
    return each * buffer_samples(store.splits[split], store.shard(split), each)


def stored_bytes(store: Store) -> int:
    """Of a whole sample, so that whoever reads a window of it has the same order."""
    return store.shape.size * np.dtype(store.transform.preparation.dtype).itemsize
