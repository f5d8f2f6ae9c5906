"""Largest unsaved window over a whole run."""

from __future__ import annotations

from dataclasses import replace

from cotswold.paramserver.runtime.server_metrics import ServerMetrics
from cotswold.training.trainers.unsaved_window import UnsavedWindow
from cotswold.wire.lifecycle import FlushBacklog, ServerCounters


def counts(unsaved: FlushBacklog | None) -> ServerCounters:
    return replace(ServerMetrics().counts("server", [], {}), unsaved=unsaved)


def test_servers_without_disks_say_nothing() -> None:
    windows = UnsavedWindow()
    assert windows.event_fields([counts(None)]) == {} and windows.warning("events") is None


def test_the_longest_window_is_kept_though_the_server_that_had_it_is_gone() -> None:
    windows = UnsavedWindow()
    windows.event_fields([counts(FlushBacklog(10, 0.5, 7.0, 1.0)), counts(FlushBacklog(20, 0.8, 0.9, 1.0))])
    assert windows.event_fields(
        [counts(FlushBacklog(10, 0.1, 0.2, 1.0)), counts(FlushBacklog(5, 0.3, 0.9, 1.0))]
    ) == {
        "dirty_bytes": 15,
        "dirty_seconds": 0.3,
        "dirty_seconds_max": 7.0,
    }
    said = windows.warning("the host's events.jsonl")
    assert (
        said is not None
        and "for up to 7.0 s, but flush_seconds is 1; see the host's events.jsonl for the reason" in said
    )


def test_a_window_that_is_a_little_late_is_no_warning() -> None:
    windows = UnsavedWindow()
    windows.event_fields([counts(FlushBacklog(10, 0.5, 1.9, 1.0))])
    assert windows.warning("events") is None
