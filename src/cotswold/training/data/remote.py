"""Patterns that data servers make: asked for by their numbers, ahead where it is known which come next.

Knows: where a pool is, numbers of samples and their epochs. Does not know: who deals samples, what is learnt,
how servers are asked.

Which sample is whose, and what counts, the ledger alone knows: here a sample that is asked for twice is made
twice, and is the same.
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
from cotswold.data.loading.batching import Wanted
from cotswold.data.loading.order import Rows
from cotswold.data.service.store import View, said
from cotswold.dataservice.runtime.batch_tensors import window_bytes
from cotswold.dataservice.runtime.client import DataClient, asking_of, client_at
from cotswold.errors import UserError
from cotswold.host import Token, require_memory, token_of
from cotswold.host.token import VARIABLE, pool_token_of
from cotswold.ops import images_last
from cotswold.processes.endpoint_settings import own_host
from cotswold.recipe.schema.data import server_place
from cotswold.training.data.indexed import Patterns, StorePatterns
from cotswold.training.strategies.base import Batch

WINDOW = 8
"""Batches that are asked ahead, at most."""
_ASKED_BYTES = 4 << 20
"""Of samples that are asked for together, where all are wanted."""
_START_SECONDS = 60.0
"""For so long it is waited for a pool that somebody has started."""


@dataclass(frozen=True)
class PoolPlace:
    """Where data servers are found; as a text it is an argument of processes."""

    address: str
    """``HOST:PORT`` of a pool that somebody has started, or the address of a head's endpoint."""
    is_port: bool
    """Whether it is the former."""
    towards: str | None = None
    """The host of the head, where replicas may be on others."""
    encrypt: bool = True
    lonely_seconds: float = 30.0
    """For so long it is waited where no server answers."""
    where: str = ""
    """What errors call the pool; empty for its address."""

    def __str__(self) -> str:
        """As JSON, by which `parsed` makes it again."""
        return json.dumps(asdict(self))

    @classmethod
    def parsed(cls, text: str) -> PoolPlace:
        """The place that a text is."""
        return cls(**json.loads(text))

    def connect(self, store: str, token: Token | None = None) -> DataClient:
        """A connection, by this token or that in the environment, for the store of this identity. Raises
        UserError where there is no token, or the address leads nowhere."""
        token = token or (pool_token_of if self.is_port else token_of)(os.environ)
        if token is None:
            raise no_token(self.address)
        asking = asking_of(WINDOW, self.lonely_seconds)
        if self.is_port:
            host, port = server_place(self.address)
            return client_at(
                host, port, token, asking, store=store, encrypt=self.encrypt, start_seconds=_START_SECONDS
            )
        host_seen = own_host(self.towards)
        return DataClient(
            token,
            self.address,
            store=store,
            host=host_seen,
            encrypt=self.encrypt,
            asking=asking,
            where=self.where,
        )


def no_token(address: str) -> UserError:
    """What is said where a pool is to be joined, and there is no token."""
    return UserError(
        f"the data servers at {address} have a token; set {VARIABLE} to what they were started with"
    )


class ServedPatterns:
    """The training samples of a store, as data servers make them; one thread uses it.

    It connects when samples are first asked for, so that a process may fork before.
    """

    def __init__(
        self,
        store: Store,
        place: PoolPlace,
        varying: Augmentation | None = None,
        seed: int = 0,
        token: Token | None = None,
    ) -> None:
        """``varying``: what makes variants, of ``seed``; ``token``: as `PoolPlace.connect` has it."""
        shape = store.shape
        self._store, self._place, self._token = store.identity, place, token
        self._view = View("train", seed, None, said(varying), store.identity)
        self._sample_bytes = window_bytes((shape.channels, shape.height, shape.width))
        self._count, self._learnable = store.splits["train"], store.learnable
        self._client: DataClient | None = None
        self._asked: dict[bytes, list[int]] = {}
        """Numbers of requests, by the numbers of the samples."""
        self._is_starved = False

    def __len__(self) -> int:
        return self._count

    @property
    def varies(self) -> bool:
        """Whether something makes variants."""
        return bool(self._view.varying)

    @property
    def is_starved(self) -> bool:
        """Whether it waits for samples now; may be asked by another thread."""
        return self._is_starved

    def expect(self, batches: Sequence[Sequence[int]]) -> None:
        """Ask for these batches, which are wanted next, as far as there is room, and for no others any more.
        Raises MachineError where nobody makes them."""
        wanted = {_key(numbers): numbers for numbers in batches}
        for key in [each for each in self._asked if each not in wanted]:
            self._drop(key)
        for key, numbers in wanted.items():
            if key not in self._asked and not self._ask(key, numbers):
                return

    def batch(self, numbers: Sequence[int]) -> Batch:
        """Samples, images last, and labels. Raises MachineError where nobody makes them."""
        key = _key(numbers)
        while key not in self._asked and not self._ask(key, numbers):
            if not self._asked:
                raise UserError(f"{len(numbers)} samples are more than data servers hand out at a time")
            self._drop(next(iter(self._asked)))
        requests = self._asked.pop(key)
        self._is_starved = True
        try:
            found = [self._connected.have(each) for each in requests]
        finally:
            self._is_starved = False
        if len(found) == 1:
            inputs, targets = found[0]
            return Batch(inputs, self._learnable(targets))
        inputs, targets = (torch.cat(parts) for parts in zip(*found, strict=True))
        return Batch(images_last(inputs), self._learnable(targets))

    def _ask(self, key: bytes, numbers: Sequence[int]) -> bool:
        """Whether there was room for all of them."""
        asked: list[int] = []
        self._is_starved = True  # for the first, it is waited until servers are there
        try:
            for wanted in _by_epoch(np.asarray(numbers, np.int64), self._count):
                number = self._connected.ask(self._view, wanted, self._sample_bytes)
                if number is None:
                    self._connected.drop(asked)
                    return False
                asked.append(number)
        finally:
            self._is_starved = False
        self._asked[key] = asked
        return True

    def _drop(self, key: bytes) -> None:
        self._connected.drop(self._asked.pop(key))

    @property
    def _connected(self) -> DataClient:
        if self._client is None:
            self._client = self._place.connect(self._store, self._token)
        return self._client


class HeldPatterns:
    """The training samples of a store as data servers make them, each kept in memory once it was asked for:
    whoever evaluates the same ones over and over asks for each once."""

    varies = False

    def __init__(self, store: Store, served: ServedPatterns) -> None:
        """Raises MemoryLimitError where they do not fit into memory."""
        check_held(store)
        shape, count = store.shape, len(served)
        size = window_bytes((shape.channels, shape.height, shape.width))
        self._served = served
        self._labels = store.learnable(torch.from_numpy(store.labels("train")))
        self._rows = np.empty((count, shape.channels, shape.height, shape.width), np.float32)
        self._has = np.zeros(count, bool)
        self._together = max(1, _ASKED_BYTES // size)

    def __len__(self) -> int:
        return len(self._has)

    @property
    def is_starved(self) -> bool:
        """Whether it waits for samples now; may be asked by another thread."""
        return self._served.is_starved

    def expect(self, batches: Sequence[Sequence[int]]) -> None:
        """Ask for what of these is not here, as far as there is room. Raises MachineError where nobody makes
        it."""
        self._served.expect([part.tolist() for each in batches for part in self._missing(each)])

    def batch(self, numbers: Sequence[int]) -> Batch:
        """Samples, images last, and labels. Raises MachineError where nobody makes them."""
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


def check_held(store: Store, copies: int = 1) -> None:
    """Raise MemoryLimitError where the training samples, kept by so many processes of this machine, do not
    fit into its memory: portions are dealt as processes are free, and each may come to hold all."""
    shape, count = store.shape, store.splits["train"]
    by = f", {copies} times" if copies > 1 else ""
    require_memory(
        copies * count * window_bytes((shape.channels, shape.height, shape.width)),
        f"keeping the {count:,} training samples of {store.path}, as data servers make them, in memory{by}",
        "give more machines, or set data.servers to 0: workers of a host then share a file of them",
    )


Fed = ServedPatterns | HeldPatterns
"""Patterns that may be asked for ahead."""


def patterns_of(
    store: Store,
    varying: Augmentation | None,
    seed: int,
    rows: str,
    pool: str | None,
    token: Token | None = None,
) -> Patterns:
    """The training samples for a process that learns: from the folder where `write_rows` has put them, or
    from data servers at a `PoolPlace`, which this token opens, or that in the environment."""
    if pool is None:
        return StorePatterns(store, "train", Path(rows), varying=varying, seed=seed)
    return ServedPatterns(store, PoolPlace.parsed(pool), varying, seed, token)


def _key(numbers: Sequence[int]) -> bytes:
    return np.asarray(numbers, np.int64).tobytes()


def _by_epoch(numbers: Rows, count: int) -> list[Wanted]:
    """Batches of one epoch each, of samples e · n + i."""
    epochs, rows = np.divmod(numbers, count)
    ends = np.flatnonzero(np.diff(epochs)) + 1
    parts = zip(np.split(epochs, ends), np.split(rows, ends), strict=True)
    return [Wanted(int(epoch[0]), own) for epoch, own in parts]
