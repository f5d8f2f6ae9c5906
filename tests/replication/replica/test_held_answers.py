"""The memory of answers that a primary holds while a secondary is silent."""

from __future__ import annotations

from tests.support.replication.replica_group import BUCKET, GROUP, ReplicaGroup, push

from cotswold.replication.replica.settings import ReplicationSettings
from cotswold.wire import BucketEnvelope, PulledNewer, PullNewer, Send

_WINDOW = 4


def held(house: ReplicaGroup) -> list[PulledNewer]:
    found = [send.message for send in house.of["a"].copies[BUCKET]._pending_replies]
    return [each for each in found if isinstance(each, PulledNewer)]


def pulled(sends: list[Send]) -> set[str]:
    return {
        each.to
        for each in sends
        if isinstance(each.message, BucketEnvelope) and isinstance(each.message.message, PulledNewer)
    }


def copies_of(answers: list[PulledNewer]) -> int:
    return len({id(buffer) for each in answers for buffer in each.buffers})


def house_with_a_silent_secondary() -> ReplicaGroup:
    house = ReplicaGroup("abc", ReplicationSettings(window=_WINDOW))
    house.begin(GROUP)
    house.ask("a", "client", push(1, 1.0, 1.0, 1.0, 1.0))
    house.drain("a")
    house.carry(lost="c")
    return house


def test_answers_to_many_clients_share_one_copy_while_they_wait() -> None:
    house = house_with_a_silent_secondary()
    for number in range(64):
        house.ask("a", f"evaluator-{number}", PullNewer("run", 0, 1, (0, 1), (-1, -1)))
    house.carry(lost="c")
    assert len(held(house)) == 64 and copies_of(held(house)) == 2, "one of each shard"
    before = held(house)[0].buffers
    house.ask("a", "client", push(2, 1.0, 1.0, 1.0, 1.0))
    house.drain("a")
    assert held(house)[0].buffers == before, "a later update leaves a held answer as it was"


def test_a_pull_beyond_the_bound_of_held_copies_is_left_unanswered_and_answered_later() -> None:
    house = house_with_a_silent_secondary()
    primary = house.of["a"].copies[BUCKET]
    for number in range(12):
        house.ask("a", f"evaluator-{number}", PullNewer("run", 0, 1, (0, 1), (-1, -1)))
        primary.state.updates.metadata.mark_written((0, 1))  # as an update for which the queue has no room
        primary.state.bump_index()
    assert copies_of(held(house)) == 2 * (_WINDOW + 1)
    house.carry(lost="c")
    house.now += 1.0
    house.say("a", house.of["a"].tick(house.now))
    assert len(pulled(house.carry())) == _WINDOW + 1
    house.ask("a", "evaluator-11", PullNewer("run", 0, 1, (0, 1), (-1, -1)))
    house.say("a", house.of["a"].tick(house.now))
    assert "evaluator-11" in pulled(house.carry())
