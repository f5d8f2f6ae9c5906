"""Updates of a session: retries, and their end. Leases: their duration."""

from __future__ import annotations

import pytest

from cotswold.paramserver.core.update_sequence import UpdateSequence, UpdateSource
from cotswold.replication.replica.lease import Lease
from cotswold.wire import SessionOpened, UpdateRefused


def test_an_update_is_sent_again_after_the_time_for_that_until_it_is_answered() -> None:
    servers = (("a", "place of a"), ("b", "place of b"))
    numbered = UpdateSequence(SessionOpened("one", 0, 1, "run", (), servers, 1.0, 0.5, "{}"))
    sent = numbered.push({}, UpdateSource(), 10.0)
    assert [each.to for each in sent] == ["a", "b"]
    assert numbered.resend(10.49) == [] and numbered.resend(10.5) == sent
    assert numbered.resend(10.9) == [], "the time begins when it was sent last"
    numbered.record_answer("a", 1)
    assert numbered.resend(11.0) == sent[1:]
    numbered.record_answer("b", 0)
    assert numbered.unanswered, "that was an answer to an older one"
    numbered.record_answer("b", 1)
    assert numbered.resend(20.0) == []


def refusal(code: str, reason: str = "", *, again: bool = False) -> UpdateRefused:
    """Return the refusal of update 1 by server a."""
    return UpdateRefused(1, "a", 1, reason, again, code)


@pytest.mark.parametrize("reason", ["", " ", "session: unknown", "expects 2", "\n", "stale"])
def test_the_code_of_a_refusal_decides_and_its_sentence_does_not(reason: str) -> None:
    servers = (("a", "place of a"), ("b", "place of b"))
    for code in ("session", "run", "expects"):
        sequence = UpdateSequence(SessionOpened("one", 0, 1, "run", (), servers, 1.0, 0.5, "{}"))
        sequence.push({}, UpdateSource(), 10.0)
        assert not sequence.record_refusal("a", refusal(code, reason)), "it is sent again"
        assert set(sequence.unanswered) == {"a", "b"}
    for code in ("finite", "stale", ""):
        sequence = UpdateSequence(SessionOpened("one", 0, 1, "run", (), servers, 1.0, 0.5, "{}"))
        sequence.push({}, UpdateSource(), 10.0)
        assert not sequence.record_refusal("a", refusal(code, reason, again=True))
        assert sequence.record_refusal("a", refusal(code, reason)), "this refusal is final"
        assert set(sequence.unanswered) == {"b"}


def test_a_lease_is_shorter_than_it_was_given_for_by_the_drift_of_clocks() -> None:
    lease = Lease()
    lease.grant(lease.request(10.0), 2.0)
    assert lease.holds(11.89) and not lease.holds(11.91), "clocks may differ by 5 %"
    lease.grant(99, 50.0)
    assert not lease.holds(12.0), "nobody asked for that"
