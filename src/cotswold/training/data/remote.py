"""Remote samples: made by data servers, requested by index, with prefetch.

Knows: the location of a pool, indices of samples and their epochs. Does not know: how samples are dealt, what
is trained, the protocol of servers.

Only the ledger knows which process has a sample, and which samples count. A sample requested twice is made
twice, with the same bits.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from cotswold.data import Augmentation, Store
from cotswold.data.loading.batching import BatchRows
from cotswold.data.loading.order import Rows
from cotswold.data.loading.served_store import DatasetView, augmentation_to_json
from cotswold.dataservice.runtime.batch_tensors import window_bytes
from cotswold.dataservice.runtime.client import DataClient, open_client, request_settings
from cotswold.errors import UserError
from cotswold.host import Token, require_memory, token_of
from cotswold.host.token import VARIABLE, pool_token_of
from cotswold.ops import images_last
from cotswold.processes.endpoint_settings import local_address
from cotswold.recipe.schema.data import server_place
from cotswold.training.data.indexed import IndexedSamples, StoreSamples
from cotswold.training.strategies.base import Batch

WINDOW = 8
"""The maximum number of batches requested ahead."""
_REQUEST_BYTES = 4 << 20
"""The maximum bytes of one request when all samples are wanted."""
_START_SECONDS = 60.0
"""Timeout in seconds for connecting to an existing data-server pool."""


@dataclass(frozen=True)
class PoolLocation:
    """The location of data servers; its text form is an argument of processes."""

    address: str
    """``HOST:PORT`` of an existing pool, or the address of a head's endpoint."""
    is_port: bool
    """True if ``address`` is the ``HOST:PORT`` of an existing pool."""
    head_host: str | None = None
    """The head's host, if replicas may be on other hosts."""
    encrypt: bool = True
    timeout_seconds: float = 30.0
    """Seconds without any answer from a server after which a request fails."""
    name: str = ""
    """The pool's name in errors; empty for its address."""

    def __str__(self) -> str:
        """Return the location as JSON, which `parsed` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def parsed(cls, text: str) -> PoolLocation:
        """Return the location of a text."""
        return cls(**json.loads(text))

    def connect(self, store: str, token: Token | None = None) -> DataClient:
        """Connect to the pool for the store of this identity, with ``token`` or the one in the environment.

        Raises UserError if there is no token, or the address is not reachable.
        """
        token = token or (pool_token_of if self.is_port else token_of)(os.environ)
        if token is None:
            raise missing_token_error(self.address)
        asking = request_settings(WINDOW, self.timeout_seconds)
        if self.is_port:
            host, port = server_place(self.address)
            return open_client(
                host, port, token, asking, store=store, encrypt=self.encrypt, start_seconds=_START_SECONDS
            )
        host_seen = local_address(self.head_host)
        return DataClient(
            token,
            self.address,
            store=store,
            host=host_seen,
            encrypt=self.encrypt,
            request_settings=asking,
            pool_text=self.name,
        )


def missing_token_error(address: str) -> UserError:
    """Return the error for a pool without a token in the environment."""
    return UserError(
        f"the data servers at {address} need a token; set {VARIABLE} to the token they were started with"
    )


class RemoteSamples:
    """The training samples of a store as data servers make them, for a single thread.

    The connection opens at the first request, so that a process may fork before.
    """

    def __init__(
        self,
        store: Store,
        place: PoolLocation,
        augmentation: Augmentation | None = None,
        seed: int = 0,
        token: Token | None = None,
    ) -> None:
        """``augmentation`` changes the samples, with random numbers from ``seed``; ``token`` is that of
        `PoolLocation.connect`.
        """
        shape = store.shape
        self._store, self._place, self._token = store.identity, place, token
        self._view = DatasetView("train", seed, None, augmentation_to_json(augmentation), store.identity)
        self._sample_bytes = window_bytes((shape.channels, shape.height, shape.width))
        self._count, self._learnable = store.splits["train"], store.learnable
        self._client: DataClient | None = None
        self._asked: dict[bytes, list[int]] = {}
        """The numbers of requests, by the indices of their samples."""
        self._is_starved = False

    def __len__(self) -> int:
        return self._count

    @property
    def is_augmented(self) -> bool:
        """True if samples are augmented."""
        return bool(self._view.augmentation_json)

    @property
    def is_starved(self) -> bool:
        """True while it waits for samples; any thread may read it."""
        return self._is_starved

    def expect(self, batches: Sequence[Sequence[int]]) -> None:
        """Request these batches, which are needed next, as far as space allows, and drop other requests.

        Raises MachineError if no server answers.
        """
        wanted = {_key(numbers): numbers for numbers in batches}
        for key in [each for each in self._asked if each not in wanted]:
            self._drop(key)
        for key, numbers in wanted.items():
            if key not in self._asked and not self._ask(key, numbers):
                return

    def batch(self, numbers: Sequence[int]) -> Batch:
        """Return samples, images last, and labels; raises MachineError if no server answers."""
        key = _key(numbers)
        while key not in self._asked and not self._ask(key, numbers):
            if not self._asked:
                raise UserError(f"{len(numbers)} samples are too many for one request to data servers")
            self._drop(next(iter(self._asked)))
        requests = self._asked.pop(key)
        self._is_starved = True
        try:
            found = [self._connected.result(each) for each in requests]
        finally:
            self._is_starved = False
        if len(found) == 1:
            inputs, targets = found[0]
            return Batch(inputs, self._learnable(targets))
        inputs, targets = (torch.cat(parts) for parts in zip(*found, strict=True))
        return Batch(images_last(inputs), self._learnable(targets))

    def _ask(self, key: bytes, numbers: Sequence[int]) -> bool:
        """Request a batch; return False if there was no space for all of it."""
        asked: list[int] = []
        self._is_starved = True  # the first request waits for the servers
        try:
            for wanted in _by_epoch(np.asarray(numbers, np.int64), self._count):
                number = self._connected.submit(self._view, wanted, self._sample_bytes)
                if number is None:
                    self._connected.cancel(asked)
                    return False
                asked.append(number)
        finally:
            self._is_starved = False
        self._asked[key] = asked
        return True

    def _drop(self, key: bytes) -> None:
        self._connected.cancel(self._asked.pop(key))

    @property
    def _connected(self) -> DataClient:
        if self._client is None:
            self._client = self._place.connect(self._store, self._token)
        return self._client


class CachedSamples:
    """The training samples of a store as data servers make them, each kept in memory after its first request.

    A process that evaluates the same samples repeatedly requests each only once.
    """

    is_augmented = False

    def __init__(self, store: Store, served: RemoteSamples) -> None:
        """Allocate memory for all samples; raises MemoryLimitError if they do not fit."""
        check_cached_bytes(store)
        shape, count = store.shape, len(served)
        size = window_bytes((shape.channels, shape.height, shape.width))
        self._served = served
        self._labels = store.learnable(torch.from_numpy(store.labels("train")))
        self._rows = np.empty((count, shape.channels, shape.height, shape.width), np.float32)
        self._has = np.zeros(count, bool)
        self._together = max(1, _REQUEST_BYTES // size)

    def __len__(self) -> int:
        return len(self._has)

    @property
    def is_starved(self) -> bool:
        """True while it waits for samples; any thread may read it."""
        return self._served.is_starved

    def expect(self, batches: Sequence[Sequence[int]]) -> None:
        """Request the missing samples of these batches, as far as space allows.

        Raises MachineError if no server answers.
        """
        self._served.expect([part.tolist() for each in batches for part in self._missing(each)])

    def batch(self, numbers: Sequence[int]) -> Batch:
        """Return samples, images last, and labels; raises MachineError if no server answers."""
        missing = self._missing(numbers)
        for place, rows in enumerate(missing):
            self._served.expect([each.tolist() for each in missing[place : place + WINDOW]])
            self._rows[rows] = self._served.batch(rows.tolist()).inputs.numpy()
            self._has[rows] = True
        chosen = np.asarray(numbers, np.int64)
        return Batch(
            images_last(torch.from_numpy(self._rows[chosen])), self._labels[torch.from_numpy(chosen)]
        )

    def _missing(self, numbers: Sequence[int]) -> list[Rows]:
        chosen = np.asarray(numbers, np.int64)
        missing = np.unique(chosen[~self._has[chosen]])
        return [missing[start : start + self._together] for start in range(0, len(missing), self._together)]


def check_cached_bytes(store: Store, copies: int = 1) -> None:
    """Raise MemoryLimitError if the training samples, cached by ``copies`` processes, exceed this machine's
    memory.

    Portions are dealt to free processes, so each process may eventually cache all samples.
    """
    shape, count = store.shape, store.splits["train"]
    by = f", {copies} times" if copies > 1 else ""
    require_memory(
        copies * count * window_bytes((shape.channels, shape.height, shape.width)),
        f"keeping the {count:,} training samples of {store.path}, as data servers make them, in memory{by}",
        "use more machines, or set data.servers to 0: the workers of a host then share a file of the samples",
    )


WorkerSamples = RemoteSamples | CachedSamples
"""Indexed samples that can be requested ahead."""


def worker_samples(
    store: Store,
    augmentation: Augmentation | None,
    seed: int,
    rows: str,
    pool: str | None,
    token: Token | None = None,
) -> IndexedSamples:
    """Return the training samples for a training process.

    They come from the folder of `write_rows`, or from data servers at a `PoolLocation`, opened with ``token``
    or the one in the environment.
    """
    if pool is None:
        return StoreSamples(store, "train", Path(rows), augmentation=augmentation, seed=seed)
    return RemoteSamples(store, PoolLocation.parsed(pool), augmentation, seed, token)


def _key(numbers: Sequence[int]) -> bytes:
    return np.asarray(numbers, np.int64).tobytes()


def _by_epoch(numbers: Rows, count: int) -> list[BatchRows]:
    """Return batches of one epoch each, for indices e · n + i."""
    epochs, rows = np.divmod(numbers, count)
    ends = np.flatnonzero(np.diff(epochs)) + 1
    parts = zip(np.split(epochs, ends), np.split(rows, ends), strict=True)
    return [BatchRows(int(epoch[0]), own) for epoch, own in parts]
