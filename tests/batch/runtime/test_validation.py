"""Distribution of held-out samples among validating workers."""

from __future__ import annotations

import random

import pytest

from cotswold import wire as m
from cotswold.batch.runtime.validation import ValidationPass
from cotswold.errors import MachineError
from cotswold.shards.core.membership import Member


def member(session: int, seconds: float | None = None) -> Member:
    joined = m.Join(f"worker-{session}", 1, "", 1, 1)
    return Member(session, f"worker-{session}", joined, 0.0, seconds)


def answer(asked: m.Validate) -> m.Validated:
    """Return a reply in which a sample's loss is a tenth of its number, which rounds; half of each portion
    is right."""
    sums = tuple(
        m.HeldOutSum(sum(0.1 * each for each in range(a, b)), b - a, {"accuracy": (b - a) / 2})
        for a, b in asked.portions
    )
    return m.Validated(asked.session, asked.number, asked.run, sums)


@pytest.mark.parametrize("held", [1, 7, 32, 33, 1000])
def test_the_means_have_the_same_bits_for_any_workers_and_exits(held: int) -> None:
    numbers, found = random.Random(3), set()
    for _ in range(30):
        validating, there = ValidationPass(5, "x", held, 32, 3), [member(1), member(2), member(3)]
        asked: list[m.Validate] = []
        session = 4
        while not validating.is_done:
            asked += [ask for _, ask in validating.grant(there, 0.0)]
            sessions = {one.session for one in there}
            asked = [ask for ask in asked if ask.session in sessions]
            assert asked, "somebody has what is missing"
            if numbers.random() < 0.3:  # one dies, and another joins
                there = [*there[1:], member(session)]
                session += 1
            else:
                validating.on_message(answer(asked.pop(numbers.randrange(len(asked)))))
        means = validating.means()
        assert means is not None and means["loss"] == pytest.approx(0.1 * (held - 1) / 2)
        assert means["accuracy"] == pytest.approx(0.5)
        found.add(means["loss"])
    assert len(found) == 1


def test_idle_workers_validate_portions_of_a_slow_one() -> None:
    validating = ValidationPass(5, "x", 64, 32, 1)
    slow, quick = member(1, 9.0), member(2, 1.0)
    ((_, first), (_, second)) = validating.grant([slow, quick], 0.0)
    assert first.session == quick.session and first.run != second.run
    validating.on_message(answer(first))
    ((_, copy),) = validating.grant([slow, quick], 0.0)
    assert (copy.session, copy.run) == (quick.session, second.run)
    validating.on_message(answer(copy))
    assert validating.is_done
    validating.on_message(answer(second))  # the slow one's answer counts no more
    means = validating.means()
    assert means is not None and means["loss"] == pytest.approx(3.15)


def test_answers_of_another_validation_count_nothing() -> None:
    validating = ValidationPass(5, "x", 10, 32, 1)
    ((_, asked),) = validating.grant([member(1)], 0.0)
    validating.on_message(m.Validated(1, 4, 0, (m.HeldOutSum(9.0, 10, {}),)))
    assert not validating.is_done
    with pytest.raises(MachineError, match="held-out samples 0 to 9 cannot be evaluated: it is rotten"):
        validating.on_message(m.Validated(asked.session, 5, 0, (), "it is rotten"))


def test_who_does_not_answer_is_asked_again_for_the_same() -> None:
    validating, there = ValidationPass(5, "x", 10, 32, 1, retry_seconds=2.0), [member(1)]
    ((_, first),) = validating.grant(there, 10.0)
    assert validating.grant(there, 11.9) == []
    assert validating.grant(there, 12.1) == [("worker-1", first)]
    assert validating.grant(there, 13.0) == []
    validating.on_message(answer(first))
    assert validating.is_done
