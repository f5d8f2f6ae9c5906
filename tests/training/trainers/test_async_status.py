"""Status of a run while it waits for its servers, with fake replicas."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from cotswold.replicas.monitor import ReplicaMonitor
from cotswold.replicas.replicas import Replicas
from cotswold.run import Recorder, Stop
from cotswold.training.trainers import async_status as showing
from cotswold.training.trainers.async_status import StatusReporter

SILENT = "server-a, server-b have said nothing for 19 s"


class Desk:
    """A run, its clock, and its messages."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stop, self.said, self.unheard, self.now = Stop(), list[str](), "", 100.0
        monkeypatch.setattr(showing, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(StatusReporter, "_show", lambda self: None)
        recorder = SimpleNamespace(stop=self.stop, event=self._event)
        replicas = SimpleNamespace(
            call_on_tick=lambda tick: None, silence_text=lambda: self.unheard, server_timeout=300.0
        )
        self.showing = StatusReporter(cast(Replicas, replicas), cast(Recorder, recorder), 3)

    def _event(self, kind: str, **more: object) -> None:
        self.said.append(f"{kind}: {more['sentence']}")

    def look(self, seconds: float = 1.0) -> list[str]:
        self.now += seconds
        self.showing._update()
        said, self.said = self.said, []
        return said


def test_a_run_that_is_to_stop_says_for_whom_it_waits_and_what_a_second_signal_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk(monkeypatch)
    desk.unheard = SILENT
    assert not desk.look(), "nobody asked"
    desk.stop.signal = 2
    (said,) = desk.look()
    assert said.startswith(f"cluster_waiting: the stop waits until the servers have saved: {SILENT}")
    assert "the run ends without saving after 300 s" in said and "at once on Ctrl-C or SIGTERM again" in said
    assert not desk.look(), "it is said seldom"
    assert len(desk.look(30.0)) == 1
    desk.unheard = ""
    assert not desk.look(60.0)


def test_a_run_that_its_limit_stops_takes_the_first_signal_for_the_wish_to_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk(monkeypatch)
    desk.unheard, desk.stop.is_limited = SILENT, True
    (said,) = desk.look()
    assert "at once on Ctrl-C or SIGTERM twice, a moment apart; then --resume continues" in said
    desk.stop.signal = 15
    (said,) = desk.look(30.0)
    assert "at once on Ctrl-C or SIGTERM again; then" in said


def test_a_run_whose_servers_answer_stops_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch)
    desk.stop.signal = 15
    assert not desk.look(60.0)


def test_a_server_is_silent_from_the_request_until_its_reply() -> None:
    watching = ReplicaMonitor()
    assert not watching.silent_seconds("a", 50.0)
    assert watching.should_request("a", 50.0) and watching.silent_seconds("a", 53.0) == 3.0
