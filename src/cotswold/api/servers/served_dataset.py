"""Batches of data servers as a PyTorch dataset.

Knows: a pool's address, orders of samples, DataLoaders. Does not know: messages, the making of batches.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from multiprocessing.util import Finalize
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from cotswold.api.arguments import as_integer
from cotswold.data.loading.batching import BatchRows
from cotswold.data.loading.dataset import worker_of_loader
from cotswold.data.loading.order import Buffered, Rows, Split, part_of_rank, part_of_worker
from cotswold.data.loading.served_store import DatasetInfo, DatasetView, SplitInfo
from cotswold.data.loading.shuffle_buffer import Epoch
from cotswold.dataservice.core.epoch_pass import SharedEpochSettings
from cotswold.dataservice.runtime.batch_tensors import window_bytes
from cotswold.dataservice.runtime.client import AHEAD_BYTES, DataClient, open_client, request_settings
from cotswold.errors import UserError
from cotswold.host import Token

LOG = logging.getLogger("cotswold")
_WINDOW = 8
"""Number of batches requested ahead."""


class ServedDataset(IterableDataset[tuple[Tensor, Tensor]]):
    """Batches from data servers; made by `connect_data`. Use it in a ``with`` statement, or call `close`.

    ``x`` is float32 (image, channel, y, x), images last in memory; ``y`` is int64 (image,), or float32
    (image, target). A batch of a shared epoch may be smaller if samples are handed out again.

    A pass is an epoch. For a shared stream, the first pass reads the rest of the current epoch, or the next
    epoch if the current one has finished; each later pass is the next epoch. A loop that joins an epoch late
    receives its remaining samples. If `set_epoch` names an epoch without remaining samples, a warning is
    logged. Without a stream, passes are epochs 0, 1 and so on, or continue from that of `set_epoch`.

    With workers of a DataLoader, call `set_epoch` before each pass; each worker draws for itself, or has its
    part. Only one pass can be active: a new one ends the previous one.
    """

    def __init__(
        self,
        place: tuple[str, int, Token, bool, tuple[int, ...], float],
        view: DatasetView,
        batch_size: int,
        shuffle: bool,
        part: tuple[int, int],
        drawn: tuple[str, bool] | None,
    ) -> None:
        self._place, self._view, self._part, self._drawn = place, view, part, drawn
        self._batch_size, self._shuffle = batch_size, shuffle
        self._epoch = torch.full((), -1, dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]  # persistent workers see changes
        self._client: DataClient | None = None
        self._process = 0
        self._is_closed = self._has_warned = self._is_named = False
        self._next = 0
        """Epoch of the next pass without a stream, unless `set_epoch` names one."""

    def __repr__(self) -> str:
        host, port = self._place[:2]
        return f"<batches of {self._batch_size} samples of the data servers at {host}:{port}>"

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass.

        Args:
            epoch: Number of the epoch, from 0.

        Raises:
            UserError: if ``epoch`` is negative.
        """
        epoch = as_integer("epoch", epoch)
        if epoch < 0:
            raise UserError(f"epoch must be at least 0, got {epoch}")
        self._epoch.fill_(epoch)
        self._is_named = True

    def terms(self) -> DatasetInfo:
        """Return a description of the served data.

        Raises:
            MachineError: if no data server answers.
        """
        return self._connected().terms()

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        if get_worker_info() is not None and int(self._epoch) < 0:
            raise UserError(
                "a DataLoader with workers needs set_epoch(epoch) before each pass over data servers"
            )
        client = self._connected()
        terms = client.terms()
        name = self._view.split
        if name not in terms.splits:
            raise UserError(
                f"the split {name!r} is not served; choose from {', '.join(sorted(terms.splits))}"
            )
        augmentation = terms.augmentation_json if name == "train" else ""
        view = DatasetView(name, self._view.seed, None, augmentation, terms.store)
        if self._drawn is None:
            batches = self._iterate(client, view, terms, terms.splits[name])
        else:
            batches = self._shared(client, view, terms, terms.splits[name], *self._drawn)
        return self._keep_open(batches)

    def _keep_open(self, batches: Iterator[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the same batches while keeping a reference to this object, which prevents its closing."""
        yield from batches

    def close(self) -> None:
        """Disconnect permanently."""
        self._is_closed = True
        if self._client is not None and self._process == os.getpid():
            self._client.close()
        self._client = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def _connected(self) -> DataClient:
        """Return the connection of this process. Raises UserError after `close`."""
        if self._is_closed:
            raise UserError("this connection to data servers is closed; connect again")
        if self._client is None or self._process != os.getpid():
            host, port, token, encrypt, ports, seconds = self._place
            asking = request_settings(_WINDOW, seconds)
            self._client = open_client(
                host,
                port,
                token,
                asking,
                encrypt=encrypt,
                ports=ports,
                start_seconds=seconds,
                again="connect again",
            )
            self._process = os.getpid()
            # a worker of a DataLoader ends without close() and runs only finalizers
            Finalize(self, self._client.close, exitpriority=10)
        return self._client

    def _order(self, terms: SplitInfo) -> Buffered:
        split = Split(terms.samples, terms.shard, self._view.seed, self._shuffle)
        return Buffered(split, max(1, terms.buffer))

    def _iterate(
        self, client: DataClient, view: DatasetView, terms: DatasetInfo, split: SplitInfo
    ) -> Iterator[tuple[Tensor, Tensor]]:
        epoch = int(self._epoch)
        if get_worker_info() is None:  # workers do not count passes and need `set_epoch`
            epoch = epoch if self._is_named else self._next
            self._next, self._is_named = epoch + 1, False
        rows = part_of_rank(self._order(split).rows(epoch), *self._part, is_even=self._shuffle)
        rows = part_of_worker(rows, self._batch_size, *worker_of_loader())
        wanted = (BatchRows(epoch, each) for each in Epoch(epoch, rows, self._batch_size).batches())
        return client.batches(view, wanted, window_bytes(terms.shape))

    def _shared(
        self,
        client: DataClient,
        view: DatasetView,
        terms: DatasetInfo,
        split: SplitInfo,
        stream: str,
        at_least_once: bool,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        order = self._order(split)
        same = {
            "store": view.store,
            "split": view.split,
            "seed": view.seed,
            "augmentation": view.augmentation_json,
        }
        what = tuple((name, str(each)) for name, each in {**same, "shuffle": self._shuffle}.items())
        most = AHEAD_BYTES // (window_bytes(terms.shape) * self._batch_size)
        drawing = SharedEpochSettings(
            *(stream, what, split.samples, self._batch_size),
            max_batches=max(2, min(_WINDOW, most)),
            at_least_once=at_least_once,
        )
        wanted = int(self._epoch)
        is_named = self._is_named or get_worker_info() is not None

        def rows_of(epoch: int) -> Rows:
            if get_worker_info() is None and int(self._epoch) == wanted:
                self._epoch.fill_(epoch + 1)
                self._is_named = False
            return order.rows(epoch)

        batches = client.shared_epoch(view, drawing, wanted, rows_of)
        return self._warn_if_empty(batches, stream, wanted) if is_named else batches

    def _warn_if_empty(
        self, batches: Iterator[tuple[Tensor, Tensor]], stream: str, wanted: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the same batches; warn once, in the first worker, if a named epoch is empty."""
        is_empty = True
        for batch in batches:
            is_empty = False
            yield batch
        if is_empty and not self._has_warned and worker_of_loader()[0] == 0:
            self._has_warned = True
            LOG.warning(
                "epoch %d of the stream %r has no samples left for this loop: earlier loops received all of "
                "them; use set_epoch with a later epoch, or connect to another stream; further empty "
                "epochs are not reported",
                wanted,
                stream,
            )
