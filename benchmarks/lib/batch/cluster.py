"""A cluster of two workers: undisturbed, slowed, stopped, and with a worker killed at intervals.

Knows: clusters, quotas, signals, clocks. Does not know: how results are kept.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import inf

from cotswold.batch.runtime.cluster import BatchCluster
from cotswold.batch.runtime.entry import open_cluster
from cotswold.batch.runtime.status import ClusterStatus
from cotswold.optim import Combine
from cotswold.processes.cluster_settings import ClusterSettings
from cotswold.testing import CpuQuota, stopped
from lib.batch.isolated import Alone


@dataclass
class Heard:
    """Events of a cluster with their times."""

    events: list[tuple[float, str, Mapping[str, object]]] = field(default_factory=list)

    def take(self, kind: str, more: Mapping[str, object]) -> None:
        """Record one event."""
        self.events.append((time.perf_counter(), kind, more))

    def since(self, moment: float, kind: str) -> list[tuple[float, Mapping[str, object]]]:
        """Return the events of a kind since a moment."""
        return [(at, more) for at, name, more in self.events if at >= moment and name == kind]


@contextmanager
def bunyip_cluster(
    workers: int, samples: int, portion: int, travel: str, sizes: tuple[int, ...]
) -> Iterator[tuple[BatchCluster, Heard]]:
    """Yield a cluster of workers that have started: each was granted a portion once."""
    heard = Heard()
    settings = ClusterSettings(
        workers=workers,
        portion_size=portion,
        point_transfer=travel,  # type: ignore[arg-type]  # from the words of the command
        silent_seconds=4.0,
    )
    work, arguments = "lib.batch.network:bunyip", {"samples": samples, "sizes": list(sizes)}
    with open_cluster(settings, work, arguments, on_event=heard.take) as cluster:
        while cluster.status().workers < workers:
            cluster.evaluate("x", "g")
        yield cluster, heard


class Search:
    """Evaluations as a line search requests them: each at a new step length."""

    def __init__(self, cluster: BatchCluster) -> None:
        self._cluster, self._number = cluster, 0
        cluster.evaluate("x", "g")
        cluster.run([Combine("d", ((-1e-3, "g"),))])

    def seconds(self) -> float:
        """Return the time of one value and gradient at another step."""
        self._number += 1
        trial = Combine("trial", ((1.0, "x"), (0.1 * self._number, "d")))
        began = time.perf_counter()
        self._cluster.evaluate("trial", "trial_g", before=[trial])
        return time.perf_counter() - began


def beside_alone(cluster: BatchCluster, alone: Alone, rounds: int) -> list[tuple[float, float]]:
    """Return seconds of a gradient, round by round: by isolated processes, and by the cluster."""
    search = Search(cluster)
    for _ in range(2):
        alone.seconds(), search.seconds()
    return [(alone.seconds(), search.seconds()) for _ in range(rounds)]


def slowed(cluster: BatchCluster, share: float, rounds: int, settling: int = 3) -> list[tuple[float, float]]:
    """Return seconds of a gradient, undisturbed and with one worker at a share of its speed (0: stopped)."""
    search, found = Search(cluster), []
    victim = next(iter(cluster.workers.values()))
    for _ in range(rounds):
        for _ in range(2):
            search.seconds()
        whole = search.seconds()
        with ExitStack() as stack:
            if share:
                stack.enter_context(CpuQuota(share)).add(victim)
            else:
                stack.enter_context(stopped(victim))
            for _ in range(settling):
                search.seconds()
            found.append((whole, search.seconds()))
    return found


def killed(
    cluster: BatchCluster, heard: Heard, every_seconds: float, rounds: int
) -> tuple[list[tuple[float, float]], list[float], bool]:
    """Return gradients per second in alternating stretches of ``every_seconds`` without and with a killed
    worker, the seconds until a new worker joined, and whether every portion counted once in every evaluation.
    """
    search, is_whole = Search(cluster), True
    pairs: list[tuple[float, float]] = []
    kills: list[float] = []
    for _ in range(rounds):
        rates = []
        for kills_too in (False, True):
            began, count = time.perf_counter(), 0
            while time.perf_counter() - began < every_seconds:
                if kills_too and count == 1:
                    cluster.watch(_killer(cluster, kills))
                search.seconds()
                count += 1
                assert cluster.last is not None
                counts = list(cluster.last.portions)
                is_whole = is_whole and counts == list(range(len(counts)))
            rates.append(count / (time.perf_counter() - began))
        pairs.append((rates[0], rates[1]))
    joined = [min((at - kill for at, _ in heard.since(kill, "joined")), default=inf) for kill in kills]
    return pairs, joined, is_whole


def _killer(cluster: BatchCluster, kills: list[float]) -> Callable[[ClusterStatus], None]:
    """Return a watcher that kills a worker once half of the evaluation is done."""

    def kill(status: ClusterStatus) -> None:
        if status.done * 2 >= status.portions > 0:
            kills.append(time.perf_counter())
            os.kill(next(iter(cluster.workers.values())), signal.SIGKILL)
            cluster.watch(None)

    return kill
