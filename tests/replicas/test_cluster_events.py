"""Events of a cluster that a run receives: about itself and about servers, and only new ones."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from cotswold.paramserver.core.dispatcher import Dispatcher
from cotswold.processes.coordinator_loop import ClusterFailedError
from cotswold.replicas import replicated_coordinator as bucket_conversation
from cotswold.replicas.monitor import ReplicaMonitor
from cotswold.replicas.replicated_coordinator import ReplicatedCoordinator
from cotswold.replication.client.routed_messenger import RoutedMessenger
from cotswold.replication.client.standalone_cluster import StandaloneCluster
from cotswold.wire import ClusterEvent, Create, DeleteRunRequest, RunStatus, StatusReply

OWN, OTHER = "c83a0b833eac6e20", "17aa0b833eac6e99"


def looked(*events: ClusterEvent, runs: tuple[str, ...] = ()) -> StatusReply:
    return StatusReply(
        "controller", 1, 3, 1, (), tuple(RunStatus(run, 4, 0, 0) for run in runs), (), 0, events
    )


def elected(seconds: float, run: str, number: int) -> ClusterEvent:
    sentence = f"bucket 3 of {run}: primary a ended (killed); secondary b took over, term 2, in 3 ms"
    return ClusterEvent(seconds, "elected", "b", sentence, run, (("b", 1),), number)


class Unheard:
    """A messenger without replies."""

    def __init__(self) -> None:
        self.sent: list[object] = []

    def send(self, to: str, message: object) -> bool:
        self.sent.append(message)
        return True

    def find_primaries(self) -> None:
        pass


def test_that_no_controller_answers_is_told_once_and_that_one_does_again() -> None:
    servers = StandaloneCluster(cast(RoutedMessenger, Unheard()), {"controller-a": ""}, OWN)
    now, told = time.monotonic(), []
    assert not servers.problem_text(now + 10), "none was asked"
    for second in range(12):
        servers.request_status(now + second)
        told.append(servers.problem_text(now + second))
    (said,) = filter(None, told)
    assert (
        said == "no controller that leads has answered for 4 s, of controller-a: pushes wait until one does"
    )
    servers.events_of(looked())
    assert servers.problem_text(time.monotonic()) == "a controller that leads answers again"
    assert not servers.problem_text(time.monotonic())


def test_a_run_that_the_cluster_knows_no_more_is_told_that_and_not_that_all_is_well_again() -> None:
    servers = StandaloneCluster(cast(RoutedMessenger, Unheard()), {"controller-a": ""}, OWN)
    servers.events_of(looked())
    now = time.monotonic()
    assert not servers.problem_text(now), "it was not made yet"
    servers.events_of(looked(runs=(OWN, OTHER)))
    assert not servers.problem_text(now) and not servers.unknown
    servers.request_status(now)
    assert servers.problem_text(now + 5).startswith("no controller that leads has answered")
    assert servers.silence_text(now + 5) == "no controller that leads has answered for 5 s"
    servers.events_of(looked(runs=(OTHER,)))
    said = servers.problem_text(now + 5)
    assert said.startswith("the cluster of controller-a does not know this run any more") and said.startswith(
        servers.unknown
    )
    assert "cotswold cluster status" in said and "--resume" in said
    assert not servers.problem_text(now + 6), "it is said once"
    assert servers.silence_text(now + 6) == "the cluster does not know this run any more"
    servers.events_of(looked(runs=(OWN,)))
    assert servers.problem_text(now + 7) == "the cluster knows this run again"
    assert not servers.problem_text(now + 7)


def test_a_run_that_ends_because_the_cluster_knows_it_no_more_says_that() -> None:
    coordinator = ReplicatedCoordinator.__new__(ReplicatedCoordinator)
    coordinator._cluster = StandaloneCluster(cast(RoutedMessenger, Unheard()), {"controller-a": ""}, OWN)
    assert "no running server has a copy" in str(coordinator.unanswered(["b"], 25))
    coordinator._cluster.events_of(looked(runs=(OWN,)))
    coordinator._cluster.events_of(looked())
    said = str(coordinator.unanswered(["b"], 25))
    assert "does not know this run any more" in said and said.endswith("resume the run")


def test_a_run_is_told_of_itself_and_of_what_befalls_servers_since_it_began() -> None:
    servers = StandaloneCluster(cast(RoutedMessenger, None), {}, OWN)
    own, others = elected(0.1, OWN, 2), elected(0.1, OTHER, 3)
    before = ClusterEvent(50.0, "lost", "server-a", "server-a ended: killed", "", (), 1)
    time.sleep(0.05)
    assert servers.events_of(looked(before, own, others)) == [own], "no other run, nothing from before"
    since = ClusterEvent(0.01, "lost", "server-b", "server-b ended: killed", "", (), 4)
    assert servers.events_of(looked(before, own, others, since)) == [since]
    assert not servers.events_of(looked(before, own, others, since))


def test_what_a_run_was_called_is_known_until_a_controller_has_removed_it(tmp_path: Path) -> None:
    """A run that ends before its request or the reply leaves nothing behind."""

    def begun(run: str) -> tuple[StandaloneCluster, Unheard]:
        messenger = Unheard()
        return StandaloneCluster(cast(RoutedMessenger, messenger), {}, run, tmp_path / "note"), messenger

    begun("first")
    begun("second")  # which ends at once
    servers, messenger = begun("third")
    servers.create(Create("third", "", (), 1))
    assert messenger.sent[:-1] == [DeleteRunRequest("second"), DeleteRunRequest("first")]
    servers.removed("first")
    servers, messenger = begun("fourth")
    servers.request_status(time.monotonic())
    assert messenger.sent[1:] == [DeleteRunRequest("third"), DeleteRunRequest("second")]
    for run in ("second", "third", "another"):
        servers.removed(run)
    begun("fifth")
    servers, messenger = begun("sixth")
    servers.request_status(time.monotonic())
    assert messenger.sent[1:] == [DeleteRunRequest("fifth"), DeleteRunRequest("fourth")]


def test_who_does_not_answer_a_run_is_named_servers_first_then_buckets_then_controllers() -> None:
    coordinator, now = ReplicatedCoordinator.__new__(ReplicatedCoordinator), 100.0
    keepers = StandaloneCluster(cast(RoutedMessenger, Unheard()), {"controller-a": ""}, OWN)
    named = ["server-a", "server-b", "server-c", "server-d"]
    coordinator._cluster = keepers
    coordinator.monitor = ReplicaMonitor()
    silent: list[str] = []
    coordinator.machine = cast(Dispatcher, SimpleNamespace(silent_servers=lambda now, seconds: silent))
    keepers.messenger = cast(RoutedMessenger, SimpleNamespace(servers=named))
    assert coordinator.silence_text(now) == "", "nobody was asked"
    silent.append(f"{OWN}/0003")
    assert coordinator.silence_text(now) == "no server has answered for 1 bucket of the parameters"
    for each in named:
        coordinator.monitor.should_request(each, now)
    assert coordinator.silence_text(now + 5) == (
        "server-a, server-b, server-c and 1 more have said nothing for 5 s"
    )
    keepers._unanswered = now
    del named[1:]
    assert coordinator.silence_text(now + 7) == (
        "server-a has said nothing for 7 s, and no controller that leads has answered for 7 s"
    )


def test_a_run_that_waits_for_servers_says_so_again_and_how_it_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coordinator, told, now = ReplicatedCoordinator.__new__(ReplicatedCoordinator), list[str](), [0.0]
    coordinator.outlived = True
    keepers = SimpleNamespace(messenger=SimpleNamespace(unknown=("run/0000",)), create=lambda wanted: None)
    coordinator._cluster = cast(StandaloneCluster, keepers)
    coordinator._on_event = lambda kind, more: told.append(f"{kind} {now[0]:.0f}: {more['sentence']}")

    def step(self: ReplicatedCoordinator, timeout: float) -> None:
        now[0] += 1.0

    monkeypatch.setattr(ReplicatedCoordinator, "step", step)
    monkeypatch.setattr(bucket_conversation, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with pytest.raises(ClusterFailedError):
        coordinator.create(Create("run", "", ("run/0000",), 1), 30.0)
    assert [each.partition(":")[0] for each in told] == ["waiting 2", "waiting 12", "waiting 22"]
    said = "waiting 12: waiting for servers for 1 of 1 part of the parameters, for 18 s more"
    assert told[1].startswith(said) and told[1].endswith("Ctrl-C, and again after a moment, exits at once")


def test_a_run_whose_buckets_nobody_makes_is_told_where_it_is_seen_why() -> None:
    coordinator = ReplicatedCoordinator.__new__(ReplicatedCoordinator)
    coordinator.outlived = True
    coordinator._cluster = cast(
        StandaloneCluster, SimpleNamespace(messenger=SimpleNamespace(unknown=("run/0000",)))
    )
    said = "1 part of the parameters has been .*the controllers refuse this run; see cotswold cluster status"
    with pytest.raises(ClusterFailedError, match=said):
        coordinator.create(Create("run", "", ("run/0000",), 1), 0.0)
