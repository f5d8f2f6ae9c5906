"""Replicas whose servers keep copies: real processes, some killed or stopped."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tests.support.replicas.opened_replicas import BATCH, PATTERNS, Opener, check_account, checkpoint, finish
from tests.support.replicas.opened_replicas import opened as opened

from cotswold.optim.server_rules import Adagrad
from cotswold.paramserver.core.replica_session import Pace
from cotswold.processes.coordinator_loop import ClusterFailedError
from cotswold.replicas.replicas import Replicas
from cotswold.replication.runtime.run_cluster import CONTROLLER

EPOCHS = 12
Events = list[tuple[str, Mapping[str, object]]]

pytestmark = pytest.mark.slow


def tallied(**more: Any) -> dict[str, Any]:
    """Return settings of replicas whose parameters count in each of four shards how often each sample was
    applied."""
    told: dict[str, Any] = {"work": "tally", "rate": 1.0, "epochs": EPOCHS, "fraction": 1.0}
    told |= {"shard_bytes": 4 * PATTERNS, "arguments": {"seconds": 0.01}}
    return {**told, "servers": 3, "copies": 2, **more}


def check_tallies(replicas: Replicas) -> None:
    """Check that each sample counts once per epoch, in every shard."""
    tallies = finish(replicas, 60.0)
    check_account(replicas)
    total = replicas.ledger.total
    assert (total.counted, total.torn, total.left_out) == (EPOCHS * PATTERNS, 0, 0), total
    assert torch.equal(tallies, torch.full_like(tallies, EPOCHS))


def controller(replicas: Replicas) -> int:
    return replicas._coordinator.process_group.pid_of(CONTROLLER)


def elections(events: Events) -> list[str]:
    return [
        str(more["sentence"])
        for kind, more in events
        if kind == "replication" and more["change"] == "elected"
    ]


@pytest.mark.soak
def test_servers_with_copies_learn_the_same_bits_as_servers_without(opened: Opener) -> None:
    points, pace = [], Pace(BATCH, overlap=False)
    for copies in (1, 2, 3):
        alone: dict[str, Any] = {"replicas": 1, "fraction": 1.0, "rule": Adagrad()}
        with opened(pace, servers=3, copies=copies, replication="star", **alone) as replicas:
            points.append(finish(replicas))
            check_account(replicas)
    with opened(pace, servers=3, copies=3, replication="chain", **alone) as replicas:
        points.append(finish(replicas))
    assert all(torch.equal(points[0], each) for each in points[1:])


@pytest.mark.parametrize(
    "how", [{}, {"copies": 3, "copies_min": 2, "replication": "chain"}], ids=["star", "chain"]
)
def test_servers_are_killed_one_after_the_other_and_every_sample_counts_once(
    opened: Opener, how: dict[str, Any]
) -> None:
    events: Events = []
    with opened(events=events, **tallied(**how)) as replicas:
        killed = 0
        while not replicas.is_over and killed < 4:
            replicas.proceed(0.7)
            os.kill(replicas.servers[sorted(replicas.servers)[0]], signal.SIGKILL)
            killed += 1
        assert killed == 4, "it was too fast for that"
        check_tallies(replicas)
        assert len(replicas.servers) == 3, "who ends is replaced"
    assert elections(events)
    assert not any("server-0 took over" in each for each in elections(events)[4:])


@pytest.mark.soak
def test_a_primary_that_was_stopped_does_no_harm_when_it_goes_on(opened: Opener) -> None:
    events: Events = []
    with opened(events=events, **tallied(silent=20.0)) as replicas:
        replicas.proceed(0.5)
        stopped = replicas.servers["server-0"]
        os.kill(stopped, signal.SIGSTOP)
        began, counted = time.monotonic(), replicas.ledger.total.counted
        while replicas.ledger.total.counted < counted + 500:
            assert time.monotonic() - began < 15, (replicas.status(), events)
            replicas.proceed(0.05)
        assert any("primary server-0 missed" in each for each in elections(events))
        os.kill(stopped, signal.SIGCONT)
        check_tallies(replicas)


@pytest.mark.soak
def test_servers_say_which_parts_they_have(opened: Opener) -> None:
    with opened(**tallied()) as replicas:
        deadline = time.monotonic() + 30

        def leads() -> list[int | None]:
            return [each.primary_buckets for each in replicas.status().servers]

        before = leads()
        while None in before or sum(each or 0 for each in before) < 1:
            assert time.monotonic() < deadline, replicas.status()
            replicas.proceed(0.05)
            before = leads()
        assert all(each.bucket_replicas for each in replicas.status().servers)
        terms = [each.term or 0 for each in replicas.status().servers]
        led = max(range(3), key=lambda at: before[at] or 0)
        os.kill(replicas.servers[f"server-{led}"], signal.SIGKILL)
        while max(each.term or 0 for each in replicas.status().servers) <= max(terms):
            assert time.monotonic() < deadline, replicas.status()
            replicas.proceed(0.05)
        check_tallies(replicas)


@pytest.mark.soak
def test_training_goes_on_while_the_controller_is_dead_and_it_is_started_again(opened: Opener) -> None:
    events: Events = []
    with opened(events=events, **tallied()) as replicas:
        replicas.proceed(0.5)
        before = controller(replicas)
        os.kill(before, signal.SIGKILL)
        replicas.proceed(1.5)
        assert controller(replicas) != before
        os.kill(replicas.servers["server-1"], signal.SIGKILL)
        check_tallies(replicas)
    assert any("primary server-1 was killed" in each for each in elections(events))


@pytest.mark.soak
def test_a_checkpoint_is_taken_while_a_server_dies_and_another_run_goes_on_from_it(opened: Opener) -> None:
    with opened(**tallied()) as replicas:
        replicas.proceed(0.4)
        victim = replicas.servers["server-2"]
        snapshot = checkpoint(replicas, lambda: os.kill(victim, signal.SIGKILL))
        tallies = snapshot.vectors["x"].view(4, PATTERNS)
        assert tallies.min(0).values.sum() == tallies.max(0).values.sum() == snapshot.ledger.total.counted
    with opened(snapshot=snapshot, **tallied(copies=3)) as replicas:
        check_tallies(replicas)


@pytest.mark.soak
def test_with_fewer_copies_than_the_least_pushes_wait_and_it_is_said_where(opened: Opener) -> None:
    events: Events = []
    with opened(events=events, **tallied(copies_min=2, silent=20.0)) as replicas:
        replicas.proceed(0.5)
        stopped = [replicas.servers[name] for name in ("server-1", "server-2")]
        for each in stopped:
            os.kill(each, signal.SIGSTOP)
        began = time.monotonic()
        while not any(
            "of at least 2 (replication_factor_min" in str(more.get("sentence")) for _, more in events
        ):
            assert time.monotonic() - began < 10, events
            replicas.proceed(0.1)
        replicas.proceed(1.5)
        (short,) = [each.under_replicated for each in replicas.status().servers if each.name == "server-0"]
        assert short[0] > 0 and short[1:] == (1, 2)
        for each in stopped:
            os.kill(each, signal.SIGCONT)
        check_tallies(replicas)
    assert any("no bucket waits for copies" in str(more.get("sentence")) for _, more in events)


def test_a_run_whose_every_copy_is_gone_ends_in_a_sentence(opened: Opener) -> None:
    with opened(**tallied(servers=2, silent=2.0)) as replicas:
        replicas.proceed(0.5)
        for process in replicas.servers.values():
            os.kill(process, signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(
            ClusterFailedError, match=r"buckets? of the parameters said nothing for 2 s.*resume"
        ):
            replicas.proceed(30.0)
        assert time.monotonic() - began < 10
