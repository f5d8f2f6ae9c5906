"""State of replicas and servers derived from their messages, with a fake clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cotswold.replicas.monitor import GrowthRate, ProcessLocation, ReplicaMonitor
from cotswold.wire.lifecycle import ActivityReport, BucketRoles, ServerCounters, StepMetrics

ONE, SERVER = ProcessLocation("replica-1", "here", 7), ProcessLocation("server-0", "here", 8)


def learnt(samples: int, seconds: float = 0.5) -> StepMetrics:
    return StepMetrics("replica-1", 1, samples, 0.0, (), seconds)


def counts(updates: int, *replicas: tuple[str, int, float, int], server: str = "server-0") -> ServerCounters:
    return ServerCounters(server, updates, 1.0, 2, 80, (("stale", 3),), 4, 2, ("replica-2",), replicas)


def test_a_replica_that_has_said_nothing_starts() -> None:
    watching = ReplicaMonitor()
    watching.replica(ONE, 0, 0.0, 10.0)
    found = watching.replica(ONE, 0, 0.0, 13.0)
    assert (found.activity, found.activity_seconds, found.samples_per_second) == ("starting", 3.0, 0.0)


def test_what_a_replica_does_goes_on_until_it_says_otherwise() -> None:
    watching = ReplicaMonitor()
    watching.on_message(ActivityReport("replica-1", "pushing", ("server-0",), 0.5), 10.0)
    found = watching.replica(ONE, 32, 10.0, 12.0)
    assert (found.activity, found.waits_for, found.samples_in_flight) == ("pushing", ("server-0",), 32)
    assert (found.activity_seconds, found.silent_seconds) == (2.5, 2.0)
    assert watching.replica(ONE, 32, 11.5, 12.0).silent_seconds == 0.5, "the coordinator heard from it later"


def test_the_rate_of_a_replica_is_that_of_its_last_seconds() -> None:
    watching = ReplicaMonitor()
    for second in range(1, 20):
        watching.on_message(learnt(100, 1.0), float(second))
    found = watching.replica(ONE, 0, 19.0, 19.0)
    assert found.samples == 1900
    assert found.samples_per_second == pytest.approx(100)
    assert watching.replica(ONE, 0, 19.0, 29.0).samples_per_second < 40, "it has stopped"


def test_the_staleness_of_a_replica_is_the_mean_over_all_servers() -> None:
    watching = ReplicaMonitor()
    watching.on_message(counts(4, ("replica-1", 3, 1.0, 2), ("replica-2", 1, 9.0, 9)), 1.0)
    watching.on_message(counts(1, ("replica-1", 1, 5.0, 5), server="server-1"), 1.0)
    found = watching.replica(ONE, 0, 1.0, 1.0)
    assert (found.updates, found.staleness, found.staleness_max) == (4, 2.0, 5)


def test_a_server_is_asked_again_once_it_has_answered_and_a_second_has_passed() -> None:
    watching = ReplicaMonitor()
    assert watching.should_request("server-0", 1.0)
    assert not watching.should_request("server-0", 9.0), "it has not answered"
    assert watching.should_request("server-0", 11.0), "the question may be lost"
    assert watching.silent_seconds("server-0", 12.0) == 11.0 and not watching.should_request("server-0", 12.0)
    assert watching.server(SERVER, 4, 9.0).silent_seconds == 8.0
    watching.on_message(counts(10), 9.5)
    assert not watching.should_request("server-0", 9.9)
    assert watching.should_request("server-0", 10.5)
    watching.on_message(counts(30), 10.5)
    found = watching.server(SERVER, 4, 10.5)
    assert found.updates == 30 and found.updates_per_second == pytest.approx(20)
    assert (found.queued_bytes, found.queued_updates, found.waits_for) == (80, 2, ("replica-2",))
    assert found.silent_seconds == 0.0


def test_a_process_that_has_ended_is_forgotten() -> None:
    watching = ReplicaMonitor()
    watching.on_message(learnt(100), 1.0)
    watching.forget("replica-1")
    assert watching.replica(ONE, 0, 1.0, 2.0).samples == 0


def test_a_rate_needs_two_points() -> None:
    rate = GrowthRate()
    assert rate.per_second(5.0) == 0.0
    rate.add(5.0, 10)
    assert rate.per_second(6.0) == 0.0
    rate.add(7.0, 30)
    assert rate.per_second(7.0) == 10.0


def test_the_rate_of_a_server_is_of_what_it_has_led_all_the_while() -> None:
    """A server that takes over a bucket has all its earlier updates; one that gives it up has fewer."""
    watching = ReplicaMonitor()
    for second, (updates, leads, term) in enumerate(
        [(100, 1, 1), (110, 1, 1), (30_120, 2, 5), (30_130, 2, 5), (40, 1, 6), (50, 1, 6)]
    ):
        told = replace(counts(updates), roles=BucketRoles(leads, 3, term, 0))
        watching.on_message(told, float(second))
        assert 0 <= watching.server(SERVER, 4, float(second)).updates_per_second <= 10
    assert watching.server(SERVER, 4, 5.0).updates_per_second == pytest.approx(10)


def test_nor_is_it_below_nothing_where_the_count_begins_anew() -> None:
    watching = ReplicaMonitor()
    for second, updates in enumerate([100, 110, 5, 15]):
        watching.on_message(counts(updates), float(second))
        assert watching.server(SERVER, 4, float(second)).updates_per_second >= 0
