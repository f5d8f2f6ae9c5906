"""Replicas of several processes that share one copy of the weights."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from tests.replicas.test_replicas import WELL, by_sgd
from tests.support.replicas.opened_replicas import BATCH, PATTERNS, SIZE, check_account, finish
from tests.training.model_parallel.test_full_batch_worker import children, runs

from cotswold.host import Call, ForkServer
from cotswold.host.ipc.shared_memory import is_supported
from cotswold.optim.server_rules import AddUpdate, Rule, Sgd
from cotswold.paramserver.core.replica_session import Pace
from cotswold.replicas.replicas import Replicas, open_replicas
from cotswold.replicas.startup import ReplicaSettings
from cotswold.replication.run_settings import ReplicatedClusterSettings
from cotswold.testing.processes import ended

pytestmark = pytest.mark.skipif(not is_supported(), reason="no shared memory without a name")
LEADERS = "tests.support.training.hogwild_hosts"


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    found = ForkServer(["torch", LEADERS])
    yield found
    found.close()


@pytest.mark.parametrize(
    "what",
    [
        "steps_of_one_process_are_plain_sgd",
        "without_a_rate_all_batches_are_of_the_same_parameters",
        "every_sample_is_computed_once_and_all_learn",
        "a_gradient_that_is_not_finite_moves_nothing",
    ],
)
def test_what_processes_compute_together(what: str, server: ForkServer) -> None:
    process = server.start(Call("leader", f"{LEADERS}:{what}"))
    assert ended(process) == 0, process.why()


@pytest.mark.parametrize(
    ("bad", "code", "said"),
    [("killed", 1, "was killed by SIGKILL"), ("error", 2, "sample 7 cannot be read")],
)
def test_a_process_that_ends_is_named_and_ends_its_host(
    bad: str, code: int, said: str, server: ForkServer
) -> None:
    process = server.start(Call("leader", f"{LEADERS}:learn_until_it_ends", {"bad": bad}))
    assert ended(process) == code
    assert "of the replica" in process.why() and said in process.why(), process.why()


def opened(
    server: ForkServer,
    processes: int,
    replicas: int,
    pace: Pace,
    rule: Rule,
    epochs: int,
    seconds: float = 0.0,
    events: list[tuple[str, Mapping[str, object]]] | None = None,
    silent: float = 10.0,
    **arguments: str,
) -> Replicas:
    settings = ReplicaSettings(
        ReplicatedClusterSettings(
            workers=replicas, servers=2, shard_bytes=64, seed=3, ranks=processes, silent_seconds=silent
        ),
        pace,
        0.03125,
        epochs,
        rule,
        1.0,
        own="pushed" if isinstance(rule, AddUpdate) else "sgd",
    )
    heard = [] if events is None else events
    return open_replicas(
        settings,
        f"{LEADERS}:regression",
        {"samples": PATTERNS, "size": SIZE, "processes": processes, "seconds": seconds, **arguments},
        processes=server,
        on_event=lambda kind, more: heard.append((kind, more)),
    )


@pytest.mark.parametrize("rule", [Sgd(), AddUpdate()], ids=lambda each: str(each.name))
def test_one_replica_of_one_process_has_the_bits_of_sgd(rule: Rule, server: ForkServer) -> None:
    with opened(server, 1, 1, Pace(BATCH, overlap=False), rule, epochs=2) as replicas:
        # a rate that is a power of two: a delta is then rounded as a step is
        assert torch.equal(finish(replicas), by_sgd(2, 0.03125))
        assert replicas.ledger.total.counted == 2 * PATTERNS


def test_every_sample_is_accounted_for_when_processes_of_replicas_are_killed(server: ForkServer) -> None:
    events: list[tuple[str, Mapping[str, object]]] = []
    with opened(server, 2, 2, Pace(2 * BATCH), AddUpdate(), 8, 0.005, events) as replicas:
        killed = []
        for _ in range(2):
            before = len(events)
            while not (there := [one for pid in replicas.replicas.values() for one in computing(pid)]):
                replicas.proceed(0.05)
            killed.append(there[-1])
            os.kill(there[-1], signal.SIGKILL)
            while "exited" not in [kind for kind, _ in events[before:]]:
                replicas.proceed(0.05)
                assert not replicas.is_over
            check_account(replicas)
        learnt = finish(replicas)
        check_account(replicas)
        reasons = [str(more["reason"]) for kind, more in events if kind == "exited"]
        assert len([why for why in reasons if "of the replica was killed by SIGKILL" in why]) == 2, reasons
        assert not any(map(runs, killed))
        assert (learnt - torch.linspace(-1, 1, SIZE)).abs().max() < 0.05


@pytest.mark.soak
@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("stopped", r"process [01] of replica-\d \(process \d+\) has been stopped for \S+ s"),
        ("hung", r"process [01] of replica-\d \(process \d+\) hangs: no process .* for \S+ s"),
    ],
    ids=["stopped", "hung"],
)
def test_a_process_that_stands_still_is_named_and_its_replica_is_started_again(
    bad: str, said: str, server: ForkServer, tmp_path: Path
) -> None:
    events: list[tuple[str, Mapping[str, object]]] = []
    told = {"silent": 2.0, "bad": bad, "marker": str(tmp_path / "marker")}
    with opened(server, 2, 2, Pace(2 * BATCH), AddUpdate(), 8, 0.002, events, **told) as replicas:  # type: ignore[arg-type]  # by name
        finish(replicas, 60.0)
        check_account(replicas)
        assert replicas.ledger.total.lost > 0, "it had samples in hand"
    (why,) = [str(more["reason"]) for kind, more in events if kind == "exited" and more["reason"] != WELL]
    assert re.search(f"{said} in the middle of a step.*, and the processes of replica-. end together", why), (
        why
    )


def computing(leader: int) -> list[int]:
    """Return the processes led by a replica's process."""
    try:
        return [each for fork in children(leader) for each in children(fork)]
    except FileNotFoundError:
        return []
