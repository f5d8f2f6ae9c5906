"""Random signals to the workers of a real cluster: every value and every gradient is right."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.replicas.works import LeastSquares

from cotswold.batch.runtime.cluster import BatchCluster
from cotswold.batch.runtime.entry import open_cluster
from cotswold.batch.runtime.status import ClusterStatus
from cotswold.host import ForkServer
from cotswold.optim import Combine
from cotswold.processes.cluster_settings import ClusterSettings

PATTERNS, SIZE = 1003, 50
LIMIT_SECONDS = 60


class Attacker:
    """Kills, stops and resumes workers during an evaluation; called several times per second."""

    def __init__(self, cluster: BatchCluster, seed: int, every_seconds: float) -> None:
        self._cluster, self._random, self._every = cluster, Random(seed), every_seconds
        self._stopped: dict[int, float] = {}
        self._next = time.monotonic() + every_seconds
        self.done = {signal.SIGKILL: 0, signal.SIGSTOP: 0, signal.SIGCONT: 0}

    def __call__(self, status: ClusterStatus) -> None:
        now = time.monotonic()
        for pid in [pid for pid, until in self._stopped.items() if until < now]:
            self._send(pid, signal.SIGCONT)
            del self._stopped[pid]
        if now < self._next or not self._cluster.workers:
            return
        self._next = now + self._random.expovariate(1 / self._every)
        pid = self._random.choice(sorted(self._cluster.workers.values()))
        number = self._random.choice((signal.SIGKILL, signal.SIGSTOP))
        self._send(pid, number)
        if number == signal.SIGSTOP:
            self._stopped[pid] = now + self._random.uniform(0.05, 4.0)

    def _send(self, pid: int, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            self.done[number] += 1


@pytest.mark.soak
@pytest.mark.parametrize(
    "more",
    [{"point_transfer": "bunyip"}, {"point_transfer": "sandblaster", "servers": 2}, {"deterministic": True}],
    ids=str,
)
def test_workers_that_are_killed_and_stopped_at_random_change_no_value(
    fork_server: ForkServer, more: dict[str, Any]
) -> None:
    settings = ClusterSettings(workers=3, portion_size=20, shard_bytes=64, silent_seconds=2.0, **more)
    given = {"samples": PATTERNS, "size": SIZE, "seconds": 0.01}
    work = LeastSquares(PATTERNS, SIZE, 0, torch.float64)
    deadline, evaluations = time.monotonic() + LIMIT_SECONDS, 0
    with open_cluster(
        settings, "tests.support.replicas.works:least_squares", given, processes=fork_server
    ) as cluster:
        attacker = Attacker(cluster, 1, 0.4)
        cluster.watch(attacker)
        cluster.write("d", torch.from_numpy(np.random.default_rng(2).standard_normal(SIZE)))
        point, direction = torch.zeros(SIZE, dtype=torch.float64), cluster.read("d")
        while evaluations < 5 or attacker.done[signal.SIGKILL] < 5 or attacker.done[signal.SIGCONT] < 3:
            assert time.monotonic() < deadline, f"{evaluations} evaluations and {attacker.done} are too few"
            evaluations += 1
            if evaluations % 4 == 0:  # a new point, and a new direction
                cluster.run([Combine("x", ((1.0, "t"),)), Combine("d", ((-0.1, "g"),))])
                point, direction = work.parameters.clone(), cluster.read("d")
            step = 0.1 * evaluations
            found = cluster.evaluate("t", "g", before=[Combine("t", ((1.0, "x"), (step, "d")))])
            work.parameters.copy_(point + step * direction)
            gradient = torch.zeros(SIZE, dtype=torch.float64)
            value = work.add(range(PATTERNS), gradient).value / PATTERNS
            assert found.value == pytest.approx(value, rel=1e-11)
            np.testing.assert_allclose(cluster.read("g"), gradient / PATTERNS, rtol=1e-8, atol=1e-12)
            assert cluster.last is not None and cluster.last.portions == tuple(range(51))
