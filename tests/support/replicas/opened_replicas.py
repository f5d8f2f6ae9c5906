"""Replicas in real processes for tests: opened on one fork server, finished, their samples summed.

Knows: small settings. Does not know: the tests.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from cotswold.host import ForkServer
from cotswold.paramserver.core.replica_session import Pace
from cotswold.replicas.evaluator import EvaluatorTask
from cotswold.replicas.replicas import Replicas, open_replicas
from cotswold.replicas.snapshot import ParameterSnapshot
from cotswold.replicas.startup import ReplicaSettings
from cotswold.replication.replica.settings import Topology
from cotswold.replication.run_settings import ReplicatedClusterSettings

PATTERNS, SIZE, BATCH = 1000, 48, 10

Opener = Callable[..., Replicas]


@pytest.fixture
def opened(fork_server: ForkServer) -> Opener:
    def open_one(
        pace: Pace | None = None,
        arguments: Mapping[str, object] | None = None,
        events: list[tuple[str, Mapping[str, object]]] | None = None,
        *,
        replicas: int = 2,
        servers: int = 1,
        copies: int = 1,
        copies_min: int = 1,
        replication: Topology = "star",
        rate: float = 0.05,
        snapshot: ParameterSnapshot | None = None,
        work: str = "regression",
        shard_bytes: int = 64,
        silent: float = 10.0,
        disks: str | None = None,
        flush_seconds: float = 0.4,
        evaluator: EvaluatorTask | None = None,
        standing: tuple[str, ...] = (),
        buckets: int | None = None,
        start: float = 120.0,
        note: str | None = None,
        **settings: Any,
    ) -> Replicas:
        processes = ReplicatedClusterSettings(
            workers=replicas,
            servers=servers,
            replication_factor=copies,
            replication_factor_min=copies_min,
            topology=replication,
            shard_bytes=shard_bytes,
            seed=3,
            silent_seconds=silent,
            disks=disks,
            flush_seconds=flush_seconds,
            standing=standing,
            max_buckets=buckets,
            start_seconds=start,
            note=note,
        )
        chosen = ReplicaSettings(processes, pace or Pace(BATCH), rate, **settings)
        heard = [] if events is None else events
        return open_replicas(
            chosen,
            f"tests.support.replicas.works:{work}",
            {"samples": PATTERNS, "size": SIZE, **(arguments or {})},
            snapshot=snapshot,
            evaluator=evaluator,
            processes=fork_server,
            on_event=lambda kind, more: heard.append((kind, more)),
        )

    return open_one


def finish(replicas: Replicas, seconds: float = 30.0) -> torch.Tensor:
    replicas.proceed(seconds)
    assert replicas.is_over, replicas.status()
    return replicas.read()


def check_account(replicas: Replicas) -> None:
    """Check that the outcome of every assigned sample is known."""
    for epoch, account in replicas.ledger.accounts.items():
        known = account.counted + account.torn + account.refused + account.lost
        opened = replicas.ledger.open if epoch == replicas.ledger.epoch else 0
        assert account.handed_out == known + opened, (epoch, account)
    total = replicas.ledger.total
    settled = total.counted + total.torn + total.refused + total.left_out
    if replicas.is_over:
        assert settled == PATTERNS * len(replicas.ledger.accounts), total


def checkpoint(replicas: Replicas, meanwhile: Callable[[], object] = lambda: None) -> ParameterSnapshot:
    """Take a checkpoint while replicas learn."""
    assert replicas.begin_checkpoint() and not replicas.begin_checkpoint(), "one at a time"
    meanwhile()
    deadline = time.monotonic() + 30
    while not replicas.is_frozen:
        assert time.monotonic() < deadline, replicas.status()
        replicas.proceed(0.02)
    return again(replicas.take_checkpoint())


def again(snapshot: ParameterSnapshot) -> ParameterSnapshot:
    """Return a snapshot as read from a file."""
    return ParameterSnapshot.of(json.loads(json.dumps(snapshot.to_json())), PATTERNS, snapshot.vectors)
