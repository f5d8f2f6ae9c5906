"""A run receives the new ones of the events that controllers repeat."""

from __future__ import annotations

from dataclasses import replace

from cotswold.replication.client import new_events as news
from cotswold.replication.client.new_events import NewEvents
from cotswold.replication.controller.event_log import ClusterEventLog
from cotswold.wire import ClusterEvent, StatusReply

_LOST = ClusterEvent(0.1, "lost", "server-a", "server-a has sent no heartbeat for 1 s", "", ())


def looked(*events: ClusterEvent, controller: str = "one") -> StatusReply:
    return StatusReply(controller, 1, 3, 1, (), (), (), 0, events, process=1)


def test_the_same_sentence_about_the_same_server_is_told_when_it_happens_again() -> None:
    found, events = NewEvents(), ClusterEventLog()
    events.note("lost", _LOST.name, _LOST.sentence, 100.0)
    assert len(found.new(looked(*events.last(101.0)))) == 1
    assert found.new(looked(*events.last(102.0))) == []
    events.note("lost", _LOST.name, _LOST.sentence, 700.0)
    (again,) = found.new(looked(*events.last(701.0)))
    assert (again.sentence, again.seconds) == (_LOST.sentence, 1.0)


def test_an_answer_that_is_overtaken_tells_nothing_again() -> None:
    found = NewEvents()
    early, late = replace(_LOST, number=1), replace(_LOST, name="server-b", number=2)
    assert found.new(looked(early, late)) == [early, late]
    assert found.new(looked(early)) == []


def test_another_controller_tells_what_was_not_the_last_of_a_server() -> None:
    found = NewEvents()
    there = replace(_LOST, sentence="server-a is there", number=7)
    found.new(looked(there))
    assert found.new(looked(replace(there, number=1), controller="two")) == []
    lost = replace(_LOST, number=2)
    assert found.new(looked(replace(there, number=1), lost, controller="two")) == [lost]
    assert found.new(looked(there)) == [], "the first one has told nothing since"


def test_what_was_told_is_not_kept_for_ever() -> None:
    found = NewEvents()
    for number in range(news._MAX_REMEMBERED + 50):
        found.new(looked(replace(_LOST, name=f"server-{number}"), controller=f"controller-{number}"))
    assert {len(found._last), len(found._numbers)} == {news._MAX_REMEMBERED}
