"""Replicas in real processes learn behind parameter servers; every sample is accounted for."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.replicas.opened_replicas import BATCH, PATTERNS, SIZE, Opener, again, check_account, finish
from tests.support.replicas.opened_replicas import opened as opened
from tests.support.replicas.works import Regression, regression

from cotswold.errors import UserError
from cotswold.optim.server_rules import Adagrad, AddUpdate, Momentum, Rule, Sgd
from cotswold.paramserver.core.replica_session import Pace
from cotswold.paramserver.core.staleness import Staleness
from cotswold.processes.coordinator_loop import ClusterFailedError
from cotswold.shards.core.permutation import samples_at

WELL = "ended with exit code 0"


def by_sgd(epochs: int, rate: float) -> torch.Tensor:
    """Return the result of plain SGD in one process, on the same batches."""
    work: Regression = regression(samples=PATTERNS, size=SIZE)
    weights = work.parameters
    weights.requires_grad_()
    optimiser = torch.optim.SGD([weights], rate)
    for place in range(0, epochs * PATTERNS, BATCH):
        weights.grad = torch.zeros(SIZE)
        with torch.no_grad():
            work.compute(samples_at(3, PATTERNS, place, place + BATCH), weights.grad)
        optimiser.step()
    return weights.detach()


@pytest.mark.parametrize("servers", [1, 3])
def test_one_replica_without_overlap_has_the_bits_of_sgd(opened: Opener, servers: int) -> None:
    with opened(Pace(BATCH, overlap=False), replicas=1, servers=servers, epochs=2, fraction=1.0) as replicas:
        assert len(replicas.servers) == servers
        assert torch.equal(finish(replicas), by_sgd(2, 0.05))
        assert replicas.ledger.total.counted == 2 * PATTERNS
        assert all(each.staleness_most == 0 for each in replicas.count())


@pytest.mark.parametrize("rule", [Sgd(), Momentum(0.5), Adagrad()], ids=lambda each: str(each.name))
def test_replicas_learn_together_by_each_rule(opened: Opener, rule: Rule) -> None:
    rate = 0.2 if isinstance(rule, Adagrad) else 0.02
    with opened(replicas=3, servers=3, epochs=4, rule=rule, rate=rate) as replicas:
        learnt = finish(replicas)
        check_account(replicas)
        assert (learnt - torch.linspace(-1, 1, SIZE)).abs().max() < 0.05
        assert sum(each.updates for each in replicas.count()) > 0
        assert all(each.refused == () for each in replicas.count())


def test_pushes_and_pulls_may_be_rarer_than_steps(opened: Opener) -> None:
    with opened(Pace(BATCH, n_fetch=3, n_push=2), epochs=4) as replicas:
        learnt = finish(replicas)
        steps = sum(each.updates for each in replicas.count()) / len(replicas._processes.shards)
        assert steps <= 0.6 * replicas.ledger.total.handed_out / BATCH, "two steps a push"
        assert (learnt - torch.linspace(-1, 1, SIZE)).abs().max() < 0.05


def test_replicas_that_are_killed_are_started_again_and_every_sample_is_accounted_for(opened: Opener) -> None:
    events: list[tuple[str, Mapping[str, object]]] = []
    slow = {"seconds": 0.005}
    with opened(arguments=slow, events=events, replicas=3, servers=2, epochs=6, fraction=1.0) as replicas:
        for _ in range(3):
            ledger, members = replicas.ledger, replicas._machine.members
            while not (busy := [each for each in members if ledger.open_of(each.session)]):
                replicas.proceed(0.02)
                assert not replicas.is_over
            os.kill(replicas.replicas[busy[0].name], signal.SIGKILL)
            while busy[0].session in members.of:  # its end is heard
                replicas.proceed(0.02)
            check_account(replicas)
        learnt = finish(replicas)
        check_account(replicas)
        assert [kind for kind, _ in events].count("exited") == 3
        assert [kind for kind, _ in events].count("joined") >= 6
        assert replicas.ledger.total.lost > 0, "they had samples in hand"
        assert (learnt - torch.linspace(-1, 1, SIZE)).abs().max() < 0.05


def test_a_replica_that_is_asked_to_end_finishes_its_assignments(opened: Opener) -> None:
    events: list[tuple[str, Mapping[str, object]]] = []
    with opened(arguments={"seconds": 0.002}, events=events, epochs=4, fraction=1.0) as replicas:
        while not replicas.ledger.total.counted:
            replicas.proceed(0.05)
        os.kill(next(iter(replicas.replicas.values())), signal.SIGTERM)
        finish(replicas)
        total = replicas.ledger.total
        assert "left" in [kind for kind, _ in events]
        assert (total.counted, total.lost, total.torn) == (4 * PATTERNS, 0, 0)


def test_what_is_paused_goes_on_elsewhere_with_the_bits_of_one_run(opened: Opener) -> None:
    alone: dict[str, Any] = {"replicas": 1, "epochs": 3, "fraction": 1.0, "rule": Momentum(0.9)}
    pace = Pace(BATCH, overlap=False)
    with opened(pace, {"seconds": 0.002}, servers=2, **alone) as replicas:
        while not replicas.ledger.total.counted:
            replicas.proceed(0.05)
        replicas.pause()
        kept = again(replicas.snapshot())
        counted = replicas.ledger.total.counted
        replicas.proceed(0.2)
        assert 0 < counted == replicas.ledger.total.counted < 3 * PATTERNS
        assert set(kept.vectors) == {"x", "velocity"}
        assert torch.equal(kept.vectors["x"], replicas.read())
    with opened(pace, servers=1, **alone) as replicas:
        whole = finish(replicas)
    with opened(pace, servers=1, snapshot=kept, **alone) as replicas:
        assert torch.equal(finish(replicas), whole)
        assert replicas.ledger.total.counted == 3 * PATTERNS


def test_a_bound_on_staleness_drops_or_holds_back(opened: Opener) -> None:
    slow = {"seconds": 0.003}
    with opened(arguments=slow, replicas=3, epochs=3, staleness=Staleness("wait", 1)) as replicas:
        finish(replicas)
        check_account(replicas)
    with opened(arguments=slow, replicas=3, epochs=3, staleness=Staleness("drop", 0)) as replicas:
        finish(replicas)
        (counts,) = replicas.count()
        check_account(replicas)
        assert counts.staleness_most == 0
        assert dict(counts.refused)["stale"] > 0
        assert replicas.ledger.total.refused > 0


def test_a_lost_server_is_an_error_that_names_it(opened: Opener) -> None:
    with opened(arguments={"seconds": 0.01}, servers=2, epochs=50) as replicas:
        replicas.proceed(0.2)
        os.kill(replicas.servers["server-1"], signal.SIGKILL)
        with pytest.raises(ClusterFailedError, match="server-1 is lost"):
            replicas.proceed(10)


def test_a_work_that_fails_ends_the_training_with_its_words(opened: Opener) -> None:
    with (
        opened(arguments={"fatal": True}, epochs=50, fraction=1.0) as replicas,
        pytest.raises(ClusterFailedError, match=r"every replica has exited.*sample 7 cannot be read"),
    ):
        replicas.proceed(30)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("rule", [Sgd(), AddUpdate()], ids=lambda each: str(each.name))
@pytest.mark.parametrize("overlap", [False, True])
def test_a_gradient_that_is_not_finite_costs_its_own_push_alone(
    opened: Opener, overlap: bool, rule: Rule, replicas: int
) -> None:
    own = "pushed" if isinstance(rule, AddUpdate) else "sgd"
    pace = Pace(BATCH, overlap=overlap)
    with opened(
        pace, work="spoilt", replicas=replicas, epochs=2, rule=rule, own=own, fraction=1.0
    ) as opened_replicas:
        learnt = finish(opened_replicas)
        total = opened_replicas.ledger.total
        assert (total.counted, total.refused) == (2 * PATTERNS - 2 * BATCH, 2 * BATCH)
        assert (learnt - torch.linspace(-1, 1, SIZE)).abs().max() < 0.5


@pytest.mark.soak
def test_a_replica_whose_step_hangs_is_started_again_and_its_samples_are_handed_to_others(
    opened: Opener, tmp_path: Path
) -> None:
    events: list[tuple[str, Mapping[str, object]]] = []
    hanging = {"marker": str(tmp_path / "hung"), "seconds": 0.002}
    with opened(
        arguments=hanging, events=events, work="hanging", epochs=4, fraction=1.0, silent=2.0
    ) as replicas:
        finish(replicas, 60.0)
        check_account(replicas)
        assert replicas.ledger.total.lost > 0, "it had samples in hand"
    (why,) = [str(more["reason"]) for kind, more in events if kind == "exited" and more["reason"] != WELL]
    assert re.search(r"replica-\d hangs: it has done nothing for [67]", why), why


def test_what_cannot_be_is_refused(opened: Opener) -> None:
    with pytest.raises(UserError, match="rate"):
        opened(rate=0.0)
    with pytest.raises(UserError, match=r"fraction must be above 0 and at most 1, got 1\.5"):
        opened(fraction=1.5)
