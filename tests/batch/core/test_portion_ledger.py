"""The ledger compared with a model made of sets."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cotswold.batch.core.portion_ledger import PortionLedger
from cotswold.wire import SumName

PORTIONS = 6
SESSIONS = st.integers(1, 3)


class LedgerBesideSets(RuleBasedStateMachine):
    """The counted set grows only by disjoint sums of open portions."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = PortionLedger(range(PORTIONS))
        self.open = set(range(PORTIONS))
        self.counted: set[int] = set()
        self.hands: dict[int, dict[int, int]] = {}
        """Portions by session and grant."""
        self.computed: set[tuple[int, int]] = set()
        self.grants = self.sums = 0

    @rule(session=SESSIONS, portion=st.integers(0, PORTIONS - 1))
    def claim(self, session: int, portion: int) -> None:
        hand = self.hands.setdefault(session, {})
        if portion in self.open and portion not in hand.values():
            self.grants += 1
            self.ledger.claim(portion, session, self.grants, is_isolated=False, now=0.0)
            hand[self.grants] = portion

    @rule(session=SESSIONS, data=st.data())
    def compute(self, session: int, data: st.DataObject) -> None:
        hand = self.hands.get(session)
        if hand:
            grant = data.draw(st.sampled_from(sorted(hand)))
            self.ledger.compute(session, grant, 1)
            self.computed.add((session, grant))

    @rule(session=SESSIONS, data=st.data())
    def release(self, session: int, data: st.DataObject) -> None:
        hand = self.hands.get(session)
        if hand:
            grant = data.draw(st.sampled_from(sorted(hand)))
            del hand[grant]
            self.ledger.release(session, grant)

    @rule(session=SESSIONS)
    def lose(self, session: int) -> None:
        gone = set(self.hands.pop(session, {}).values())
        freed = self.ledger.drop_session(session)
        held = {portion for hand in self.hands.values() for portion in hand.values()}
        assert set(freed) == gone - held

    @rule(session=SESSIONS, portions=st.sets(st.integers(0, PORTIONS - 1)))
    def offer(self, session: int, portions: set[int]) -> None:
        self.sums += 1
        accepted = self.ledger.offer(SumName(session, self.sums), tuple(portions))
        assert accepted is (bool(portions) and portions <= self.open)
        if accepted:
            assert self.ledger.offer(SumName(session, self.sums), tuple(portions)), (
                "again, and nothing changes"
            )
            self.counted |= portions
            self._close(portions)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        left_out = data.draw(st.sets(st.sampled_from(sorted(self.open)), max_size=2))
        self.ledger.withdraw(left_out)
        self._close(left_out)

    def _close(self, portions: set[int]) -> None:
        self.open -= portions
        for hand in self.hands.values():
            for grant in [grant for grant, portion in hand.items() if portion in portions]:
                del hand[grant]

    @invariant()
    def they_agree(self) -> None:
        ledger = self.ledger
        assert set(ledger.open) == self.open
        assert set(ledger.counted) == self.counted
        assert ledger.is_complete is (not self.open)
        held = {portion for hand in self.hands.values() for portion in hand.values()}
        in_sums = {
            self.hands[session][grant]
            for session, grant in self.computed
            if grant in self.hands.get(session, {})
        }
        for portion in range(PORTIONS):
            assert ledger.is_free(portion) is (portion in self.open - held)
            assert ledger.is_summed(portion) is (portion in in_sums)
        assert ledger.computed == len(ledger.counted) + len(in_sums & self.open)


TestLedgerBesideSets = LedgerBesideSets.TestCase
TestLedgerBesideSets.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_sum_with_one_portion_that_counts_is_refused_whole() -> None:
    ledger = PortionLedger([1, 2, 3])
    assert ledger.offer(SumName(1, 1), [2])
    assert not ledger.offer(SumName(2, 1), [1, 2])
    assert 1 in ledger.open
    assert ledger.log == [SumName(1, 1)]


def test_a_portion_is_not_given_to_a_session_twice() -> None:
    ledger = PortionLedger([1])
    ledger.claim(1, 7, 1, is_isolated=False, now=0.0)
    with pytest.raises(AssertionError, match="session 7 claims portion 1 twice"):
        ledger.claim(1, 7, 2, is_isolated=False, now=0.0)


def test_what_counts_is_given_to_nobody() -> None:
    ledger = PortionLedger([1])
    ledger.offer(SumName(1, 1), [1])
    with pytest.raises(AssertionError, match="not wanted"):
        ledger.claim(1, 7, 1, is_isolated=False, now=0.0)


def test_a_portion_enters_the_sum_of_a_session_once() -> None:
    ledger = PortionLedger(range(PORTIONS))
    ledger.claim(3, 1, 7, is_isolated=False, now=0.0)
    assert ledger.compute(1, 7, 1) and ledger.is_summed(3)
    assert not ledger.compute(1, 7, 1), "that is known"
    assert ledger.compute(1, 7, 2), "the session began another sum"
    assert not ledger.compute(2, 7, 1), "nobody else has the grant"
