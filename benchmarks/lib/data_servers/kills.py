"""Training while one of two data servers is killed repeatedly, compared with training without kills.

Knows: a pool, its processes, a trainer that takes epoch after epoch. Does not know: the comparison.

Every batch identifies its samples: the labels are the rows of the samples.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import numpy as np
import torch

import cotswold.data
from cotswold.bench.measure import Document, rounded
from cotswold.data import Store
from cotswold.data.loading.served_store import ServedStore
from cotswold.dataservice.runtime.pool import DataPool, PoolSettings, open_pool
from cotswold.host import Token

WORK = "lib.data_servers.kills:numbered"


class Numbered(ServedStore):
    """A served store whose labels are rows."""

    def batches(
        self,
        view: str,
        epoch: int,
        rows: np.ndarray[Any, np.dtype[np.int64]],
        out: memoryview | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return batches like `ServedStore.batches`."""
        samples, _ = super().batches(view, epoch, rows, out)
        return samples, torch.from_numpy(np.array(rows))


def numbered(store: str, cache_bytes: int, varying: str) -> Numbered:
    """Return the work of a data server."""
    return Numbered(Store(store), cache_bytes, varying)


def trained(
    store: Store, varying: str, batch: int, step_seconds: float, seconds: float, every: float
) -> Document:
    """Return samples per second of a trainer that takes ``step_seconds`` per batch on its own core or device.

    One of two servers in turn is killed every ``every`` seconds, or never if 0. The last epoch is read to its
    end, so that its samples can be counted.
    """
    token, had, killed = Token.new(), list[np.ndarray[Any, np.dtype[np.int64]]](), 0
    there = store.splits["train"]
    arguments: dict[str, object] = {
        "store": str(store.path.absolute()),
        "cache_bytes": 1 << 30,
        "varying": varying,
    }
    settings = PoolSettings(servers=2, host="127.0.0.1")
    with (
        open_pool(settings, WORK, arguments, token=token) as pool,
        _serving(pool),
        cotswold.data.connect(pool.port_address, token, batch_size=batch) as batches,
    ):
        batches.terms()
        while len(pool.status().servers) < 2:
            time.sleep(0.05)
        next(iter(batches))  # the wait for the first batch is not part of training
        epoch, taken, waited = 1, 0, 0.0
        began = time.monotonic()
        kills = began + every if every else float("inf")
        counted, counted_seconds = 0, 0.0
        while time.monotonic() - began < seconds:
            batches.set_epoch(epoch)
            had.append(np.zeros(there + 1, np.int64))  # the last counts invalid rows
            now = time.monotonic()
            for _, rows in batches:
                got = time.monotonic()
                waited += got - now
                np.add.at(had[-1], rows.numpy().clip(-1, there), 1)
                taken += len(rows)
                time.sleep(max(0.0, step_seconds - (time.monotonic() - got)))
                now = time.monotonic()
                if now - began < seconds:
                    counted, counted_seconds = taken, now - began
                if now >= kills:
                    kills += every
                    killed += _kill_one(pool, killed)
            epoch += 1
    counts = np.stack(had)
    return {
        "samples": taken,
        "epochs": epoch - 1,
        "samples_a_second": rounded(counted / counted_seconds),
        "waited": rounded(waited / (time.monotonic() - began)),
        "killed": killed,
        "twice": int((counts[:, :there] - 1).clip(0).sum()),
        "lost": int((counts[:, :there] == 0).sum()),
        "strange": int(counts[:, there].sum()),
    }


def _kill_one(pool: DataPool, number: int) -> int:
    """Kill the next server in turn and return the number killed."""
    pids = [each.pid for each in pool.status().servers if each.pid]
    if len(pids) < 2:
        return 0  # the last killed server has not restarted
    os.kill(pids[number % len(pids)], signal.SIGKILL)
    return 1


@contextmanager
def _serving(pool: DataPool) -> Iterator[None]:
    """Run the pool's head in a thread."""
    over = Event()
    thread = Thread(target=lambda: pool.wait(over.is_set), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(20)
