"""Two replicas: undisturbed, with one slowed, and with one killed at intervals.

Knows: quotas, signals, the reference of each case. Does not know: the command, how results are kept.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from cotswold.bench.measure import Document, rounded
from cotswold.data import Store
from cotswold.recipe import Recipe
from cotswold.replicas.replicas import Replicas
from cotswold.testing import CpuQuota
from lib.downpour.compute_only import IsolatedProcesses
from lib.downpour.replicas import arguments, opened, stretch

SETTLING_SECONDS = 2.0
KILLS = 2


class Speeds:
    """Replicas that live while all cases are measured; use in a ``with`` statement."""

    def __init__(self, recipe: Recipe, store: Store) -> None:
        self._recipe, self._store = recipe, store
        self._open = ExitStack()
        self._replicas: Replicas | None = None
        self._computing: IsolatedProcesses | None = None
        self._rows = Path()

    def __enter__(self) -> Self:
        self._rows = Path(self._open.enter_context(TemporaryDirectory()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    @property
    def replicas(self) -> Replicas:
        """Return the replicas, opened at first use."""
        if self._replicas is None:
            self._replicas = self._open.enter_context(opened(self._recipe, self._store, self._rows))
            self._replicas.resume()
        return self._replicas

    def two(self, seconds: float) -> Document:
        """Compare with as many isolated processes, which run while the replicas are paused."""
        replicas = self.replicas
        if self._computing is None:
            words = arguments(self._recipe, self._store, self._rows)
            workers, batch = self._recipe.cluster.workers, self._recipe.training.batch_size
            self._computing = self._open.enter_context(IsolatedProcesses(workers, words, batch))
        replicas.pause()
        alone = self._computing.rate(seconds, lambda: replicas.proceed(0.2))
        replicas.resume()
        replicas.proceed(SETTLING_SECONDS)
        together, used = stretch(replicas, seconds)
        return {
            "computing": rounded(alone),
            "replicas": rounded(together),
            "ratio": rounded(together / alone),
            **used,
        }

    def slowed(self, share: float, seconds: float) -> Document:
        """Slow one replica to a share of its speed, and compare with the sum of both speeds, each measured
        next to the other."""
        replicas = self.replicas
        replicas.proceed(SETTLING_SECONDS)
        whole, _ = stretch(replicas, seconds)
        # the quota is a share of a whole core; a replica that shares two cores with a server has less than
        # one
        victim = next(iter(replicas.replicas.values()))
        with CpuQuota(share) as quota:
            quota.add(victim)
            replicas.proceed(SETTLING_SECONDS)
            slow, used = stretch(replicas, seconds)
        ideal = whole * (1 + share) / 2
        return {
            "equal": rounded(whole),
            "one slow": rounded(slow),
            "sum of speeds": rounded(ideal),
            "ratio": rounded(slow / ideal),
            **used,
        }

    def killed(self, every: float) -> Document:
        """Kill a replica in the middle of each interval of ``every`` seconds; it restarts."""
        replicas = self.replicas
        replicas.proceed(SETTLING_SECONDS)
        whole, _ = stretch(replicas, KILLS * every)
        began, kills = time.monotonic(), 0

        def look() -> None:
            nonlocal kills
            if kills < KILLS and time.monotonic() - began > (kills + 0.5) * every:
                kill_one(replicas)
                kills += 1

        disturbed, _ = stretch(replicas, KILLS * every, look)
        return {
            "undisturbed": rounded(whole),
            "killed": rounded(disturbed),
            "kills": kills,
            "ratio": rounded(disturbed / whole),
        }


def kill_one(replicas: Replicas) -> None:
    """Kill the oldest replica."""
    victim = next(iter(replicas.replicas.values()), None)
    if victim is not None:
        os.kill(victim, signal.SIGKILL)
