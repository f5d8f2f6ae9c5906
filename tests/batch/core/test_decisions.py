"""Single decisions of an evaluation: blame, left-out portions, assignment."""

from __future__ import annotations

import pytest

from cotswold.batch.core.portion_choice import portions_to_leave_out
from cotswold.batch.core.portion_failures import PortionFailures
from cotswold.batch.core.portion_ledger import PortionLedger
from cotswold.batch.core.portion_queues import PortionHomes
from cotswold.batch.core.settings import EvaluationSettings
from cotswold.shards.core.membership import Members
from cotswold.shards.core.permutation import PortionPermutation
from cotswold.wire import Join


def test_a_portion_is_to_blame_for_deaths_in_a_row_and_not_where_one_died_without_it() -> None:
    failures = PortionFailures(deaths=3)
    failures.record_death(1, [7], "was killed")
    failures.record_death(2, [7], "was killed")
    failures.record_death(3, [8], "was killed")  # and did not have 7
    failures.record_death(4, [7], "was killed")
    assert failures.may_try(7, 9)
    failures.record_death(5, [7], "was killed")
    failures.record_death(6, [7], "was killed")
    assert not failures.may_try(7, 9)
    assert failures.sentence(7) == "portion 7 kills every worker: was killed (on 5 workers)"


@pytest.mark.parametrize(("computed", "left"), [(3, []), (5, [5, 6, 7, 8, 9])])
def test_a_deadline_waits_for_the_least_part(computed: int, left: list[int]) -> None:
    rules = EvaluationSettings(PortionPermutation(0, 100, 10), 4, deadline_factor=2.0, least=0.5)
    members, ledger = Members(), PortionLedger(range(10))
    member = members.add(Join("one", 0, "", 100, 4), 0.0)
    member.seconds, member.is_ready = 1.0, True
    for portion in range(computed):
        ledger.claim(portion, member.session, portion + 1, is_isolated=True, now=0.0)
        ledger.compute(member.session, portion + 1, portion + 1)
    assert portions_to_leave_out(ledger, members, rules, 19.0) == []
    assert portions_to_leave_out(ledger, members, rules, 20.0) == left


def test_portions_that_are_at_home_with_nobody_go_to_those_who_have_none() -> None:
    homes = PortionHomes(dict.fromkeys(range(6), 1) | {6: 9, 7: 9, 8: 9})
    assert homes.shares(range(9), [1, 2, 3]) == {1: [0, 1, 2, 3, 4, 5], 2: [6], 3: [7, 8]}
