"""Checkpoints taken while replicas learn: exactly the counted samples, on any processes."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
import torch
from tests.support.replicas.opened_replicas import BATCH, PATTERNS, Opener, checkpoint, finish
from tests.support.replicas.opened_replicas import opened as opened

from cotswold.optim.server_rules import Adagrad, Momentum, Rule, Sgd
from cotswold.paramserver.core.replica_session import Pace
from cotswold.processes.coordinator_loop import ClusterFailedError


@pytest.mark.parametrize("rule", [Sgd(), Momentum(0.9), Adagrad()], ids=lambda each: str(each.name))
def test_a_checkpoint_while_replicas_learn_goes_on_with_the_bits_of_one_run(
    opened: Opener, rule: Rule
) -> None:
    alone: dict[str, Any] = {"replicas": 1, "epochs": 3, "fraction": 1.0, "rule": rule}
    pace = Pace(BATCH, overlap=False)
    with opened(pace, {"seconds": 0.001}, servers=3, **alone) as replicas:
        kept = []
        while not replicas.is_over:
            replicas.proceed(0.1)
            if not replicas.is_over and replicas._machine.may_begin_checkpoint:
                kept.append(checkpoint(replicas))
        whole = replicas.read()
    assert len({each.ledger.total.counted for each in kept}) > 2
    chosen = kept[len(kept) // 2]
    assert chosen.versions == (chosen.ledger.total.counted // BATCH,) * len(chosen.versions)
    with opened(pace, servers=1, snapshot=chosen, **alone) as replicas:
        assert torch.equal(finish(replicas), whole)
        assert replicas.ledger.total.counted == 3 * PATTERNS
        assert {each for counts in replicas.count() for _, each in counts.versions} == {3 * PATTERNS // BATCH}


def test_the_ledger_of_a_checkpoint_counts_exactly_what_its_vectors_have(opened: Opener) -> None:
    """Replicas and servers die; on other processes every sample then counts once per epoch."""
    told: dict[str, Any] = {"work": "tally", "rate": 1.0, "epochs": 20, "fraction": 1.0, "of": "samples"}
    told.update(shard_bytes=4 * PATTERNS, arguments={"seconds": 0.01})
    snapshot = None
    for replicas_count, servers in ((3, 3), (2, 1), (4, 2)):
        with opened(replicas=replicas_count, servers=servers, snapshot=snapshot, **told) as replicas:
            for _ in range(2):
                replicas.proceed(0.15)
                victim = next(iter(replicas.replicas.values()))
                snapshot = checkpoint(replicas, lambda victim=victim: os.kill(victim, signal.SIGKILL))  # type: ignore[misc]  # mypy and defaults
                total = snapshot.ledger.total
                assert total.handed_out == total.counted + total.torn + total.lost, total
                tallies = snapshot.vectors["x"].view(4, PATTERNS)
                assert ((tallies >= 0) & (tallies <= snapshot.ledger.epoch + 1)).all()
                assert not total.torn and (tallies == tallies[0]).all() and tallies[0].sum() == total.counted
    with opened(replicas=2, servers=1, snapshot=snapshot, **{**told, "arguments": {}}) as replicas:
        tallies = finish(replicas).view(4, PATTERNS)
        total = replicas.ledger.total
        assert (total.counted, total.torn, total.left_out) == (20 * PATTERNS, 0, 0)
        assert (tallies == 20).all()
        assert replicas._machine.members.newest >= 11, "sessions of the runs before are not given again"


def test_a_server_that_is_stopped_is_named_within_the_silence(opened: Opener) -> None:
    with opened(arguments={"seconds": 0.01}, servers=2, epochs=50, silent=1.0) as replicas:
        replicas.proceed(0.3)
        os.kill(replicas.servers["server-1"], signal.SIGSTOP)
        began = time.monotonic()
        pid = replicas.servers["server-1"]
        said = (
            rf"server-1 has not answered for 1 s \(server-1 is stopped: process {pid}\), .*; resume the run$"
        )
        with pytest.raises(ClusterFailedError, match=said):
            replicas.read()
        assert time.monotonic() - began < 8


def test_a_replica_without_memory_is_started_again_until_that_is_in_vain(opened: Opener) -> None:
    with (
        opened(work="hungry", epochs=9, replicas=1) as replicas,
        pytest.raises(ClusterFailedError, match=r"every replica has exited.*allocate.*resume the run"),
    ):
        replicas.proceed(30)


def test_replicas_are_hired_while_others_learn(opened: Opener) -> None:
    slow = {"seconds": 0.004}
    with opened(arguments=slow, replicas=1, epochs=4, fraction=1.0) as replicas:
        while not replicas.ledger.total.counted:
            replicas.proceed(0.05)
        replicas.hire(2)
        learnt: dict[str, int] = {}
        while not replicas.is_over:
            for each in replicas.proceed(0.1):
                learnt[each.name] = learnt.get(each.name, 0) + each.samples
        assert set(learnt) == {"replica-1", "replica-2", "replica-3"}
        assert replicas.ledger.total.counted == 4 * PATTERNS


def test_one_replica_learns_until_the_warm_start_is_over(opened: Opener) -> None:
    slow = {"seconds": 0.003}
    with opened(arguments=slow, replicas=3, epochs=3, warm_samples=400, fraction=1.0) as replicas:
        early: set[str] = set()
        late: set[str] = set()
        while not replicas.is_over:
            was_warm = replicas.ledger.total.counted >= 400
            names = {each.name for each in replicas.proceed(0.05)}
            if replicas.ledger.total.counted < 400:
                early |= names
            elif was_warm:
                late |= names
        assert len(early) == 1 and len(late) == 3, (early, late)


def test_an_epoch_of_images_leaves_out_what_nobody_has_had(opened: Opener) -> None:
    slow = {"seconds": 0.002}
    with opened(arguments=slow, replicas=2, epochs=3, of="samples", fraction=0.5) as replicas:
        finish(replicas)
        assert len(replicas.ledger.accounts) == 3
        assert sum(account.left_out for account in replicas.ledger.accounts.values()) > 0
        for account in replicas.ledger.accounts.values():
            assert account.counted >= 0.5 * PATTERNS
            assert account.counted + account.torn + account.refused + account.left_out == PATTERNS
