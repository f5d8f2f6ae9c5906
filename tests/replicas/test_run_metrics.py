"""A run's metrics of long-lived servers contain only its own share, and nothing from before."""

from __future__ import annotations

from dataclasses import replace

from cotswold.paramserver.runtime.server_metrics import ServerMetrics
from cotswold.replicas.replicated_coordinator import ReplicatedCoordinator
from cotswold.replicas.run_metrics import RunMetrics
from cotswold.wire.lifecycle import FlushBacklog, ServerCounters

BEFORE = replace(
    ServerMetrics().counts("server-a-0", [], {"strangers": 5, "malformed": 2}),
    accepted_bytes=1000,
    applying_seconds=50.0,
    cpu_seconds=90.0,
    sent_bytes=(("replica-1", 1000),),
    unsaved=FlushBacklog(10, 0.5, 40.0, 1.0),
)


def later(window: float, longest: float) -> ServerCounters:
    return replace(
        BEFORE,
        refused=(("malformed", 2), ("stale", 4), ("strangers", 6)),
        accepted_bytes=1300,
        applying_seconds=51.0,
        cpu_seconds=93.0,
        sent_bytes=(("replica-1", 1100), ("replica-2", 200)),
        unsaved=FlushBacklog(20, window, longest, 1.0),
    )


def longest(counts: ServerCounters) -> float:
    assert counts.unsaved is not None
    return counts.unsaved.longest_seconds


def test_a_run_hears_what_a_server_has_done_since_it_began() -> None:
    since = RunMetrics()
    first = since.of(BEFORE)
    assert (first.accepted_bytes, first.cpu_seconds, first.refused, longest(first)) == (0, 0.0, (), 0.5)
    found = since.of(later(0.7, 40.0))
    assert (found.accepted_bytes, found.applying_seconds, found.cpu_seconds) == (300, 1.0, 3.0)
    assert found.refused == (("stale", 4), ("strangers", 1))
    assert found.sent_bytes == (("replica-1", 100), ("replica-2", 200))
    assert since.of(replace(BEFORE, server="server-a-0.1")).accepted_bytes == 0, "another process"


def test_the_longest_window_of_a_run_is_none_from_before_it_began() -> None:
    since = RunMetrics()
    found = [
        longest(since.of(each)) for each in (BEFORE, later(1.5, 40.0), later(0.2, 40.0), later(0.3, 45.0))
    ]
    assert found == [0.5, 1.5, 1.5, 45.0]


def test_a_run_whose_servers_are_its_own_hears_all_that_they_say() -> None:
    coordinator = ReplicatedCoordinator.__new__(ReplicatedCoordinator)
    coordinator._metrics = RunMetrics()
    for outlived, taken_bytes in ((False, 1000), (True, 0)):
        coordinator.outlived = outlived
        found = coordinator._normalize(BEFORE)
        assert isinstance(found, ServerCounters) and found.accepted_bytes == taken_bytes


def test_servers_that_are_not_heard_any_more_are_not_kept() -> None:
    since = RunMetrics()
    for number in range(2000):
        since.of(replace(BEFORE, server=f"server-a-0.{number}"))
        since.of(BEFORE)
    assert len(since._first) == len(since._longest) == 1000
    assert since.of(replace(BEFORE, cpu_seconds=93.0)).cpu_seconds == 3.0
