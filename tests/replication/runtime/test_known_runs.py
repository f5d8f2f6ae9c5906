"""A long-lived server forgets finished runs completely."""

from __future__ import annotations

from cotswold.wire import Assign, DeleteRun, Group, RunDescriptionRequest
from cotswold.wire.messenger import Received
from lib.fuzz.parameter_server import CLIENT, CONTROLLER, LED, OWN, RUN, ServerTarget


def test_of_a_run_that_is_over_a_server_knows_neither_what_it_was_nor_who_spoke() -> None:
    victim = ServerTarget()
    victim.check()
    assert list(victim._role._runs) == [RUN] and (RUN, "replica-1") in victim._role._clients._names
    for sender, epoch in ((CLIENT, 1), (CONTROLLER, 0)):  # no controller, and one that leads no more
        victim.attend(Received(sender, DeleteRun(epoch, RUN)))
        assert list(victim._role._runs) == [RUN] and victim._role._clients._names
    victim.attend(Received(CONTROLLER, DeleteRun(1, RUN)))
    assert not victim._role._runs and not victim._role._clients._names
    asked = victim._post.sent[RunDescriptionRequest.__name__]
    victim.attend(Received(CONTROLLER, Assign(1, Group(LED, 1, OWN, ()))))
    assert victim._post.sent[RunDescriptionRequest.__name__] == asked + 1, (
        "it comes again, and is described anew"
    )
