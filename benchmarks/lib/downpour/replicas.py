"""Replicas of a recipe on real processes, opened as `strategy = "downpour"` opens them, and their speed.

Knows: how replicas are opened, their processor time, counted samples. Does not know: cells, other methods.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from cotswold.bench.measure import Document, rounded
from cotswold.data import Store
from cotswold.host import ForkServer
from cotswold.recipe import Recipe, dump
from cotswold.replicas.replicas import PRELOADED, Replicas, open_replicas
from cotswold.training.async_sgd.strategy import settings_of
from cotswold.training.data.indexed import write_rows
from lib.processor_time import Used

WORK = "cotswold.training.async_sgd.replica_task"
POLL_SECONDS = 0.05
_LATEST_SECONDS = 60.0
"""Seconds to wait for the first counted sample."""


def arguments(recipe: Recipe, store: Store, rows: Path) -> dict[str, str]:
    """Return the arguments of a replica's work; write the rows if they do not exist."""
    write_rows(store, "train", rows)
    return {"recipe": dump(recipe), "store": str(store.path.absolute()), "rows": str(rows.absolute())}


@contextmanager
def opened(
    recipe: Recipe,
    store: Store,
    rows: Path,
    vectors: Mapping[str, Tensor] | None = None,
    run: Path | None = None,
) -> Iterator[Replicas]:
    """Yield started, paused replicas.

    ``vectors`` are initial values; ``run`` is the folder of traffic, if the recipe records it.
    """
    processes = ForkServer((*PRELOADED, WORK))
    given = arguments(recipe, store, rows)
    try:
        with open_replicas(
            settings_of(recipe, run=run),
            f"{WORK}:build_replica_task",
            given,
            vectors=vectors,
            processes=processes,
        ) as replicas:
            replicas.pause()
            while replicas.status().connected_replicas < recipe.cluster.workers and not replicas.is_over:
                replicas.proceed(POLL_SECONDS)
            yield replicas
    finally:
        processes.close()


def proceed_until(
    replicas: Replicas, holds: Callable[[], bool], look: Callable[[], object] = lambda: None
) -> None:
    """Run replicas until a condition holds or the training ends; call ``look`` at intervals."""
    while not holds() and not replicas.is_over:
        replicas.proceed(POLL_SECONDS)
        look()


def stretch(
    replicas: Replicas, seconds: float, look: Callable[[], object] = lambda: None
) -> tuple[float, Document]:
    """Run for some seconds, or longer if no sample counts.

    Return counted samples per second, and the processor time of a step of all replicas.
    """
    steps = 0
    replicas.proceed(0.0)
    ledger = replicas.ledger
    workers, servers, own = (
        Used(pids) for pids in (replicas.replicas.values(), replicas.servers.values(), [os.getpid()])
    )
    began, counted = time.perf_counter(), ledger.total.counted
    end = began + seconds
    while not replicas.is_over and time.perf_counter() < end:
        steps += sum(each.steps for each in replicas.proceed(POLL_SECONDS))
        look()
        if time.perf_counter() >= end and ledger.total.counted == counted:
            end = min(end + seconds, began + _LATEST_SECONDS)
    took = time.perf_counter() - began
    count = max(steps, 1)
    return (ledger.total.counted - counted) / took, {
        "step_ms": {
            "wall, of a replica": rounded(1e3 * took * len(replicas.replicas) / count),
            "replicas, all threads": rounded(1e3 * workers.seconds() / count),
            "replicas, transport": rounded(1e3 * workers.beside_the_busiest() / count),
            "servers": rounded(1e3 * servers.seconds() / count),
            "coordinator": rounded(1e3 * own.seconds() / count),
        },
        "steps": steps,
    }
