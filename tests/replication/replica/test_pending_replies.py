"""The memory of answers that a primary holds while a secondary is silent."""

from __future__ import annotations

from tests.support.replication.replica_group import BUCKET, GROUP, ReplicaGroup, push

from cotswold.replication.replica.settings import ReplicationSettings
from cotswold.wire import BucketEnvelope, PulledNewer, PullNewer, Send

_WINDOW = 4


def held(servers: ReplicaGroup) -> list[PulledNewer]:
    found = [send.message for send in servers.of["a"].copies[BUCKET]._pending_replies]
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
    servers = ReplicaGroup("abc", ReplicationSettings(window=_WINDOW))
    servers.begin(GROUP)
    servers.ask("a", "client", push(1, 1.0, 1.0, 1.0, 1.0))
    servers.drain("a")
    servers.carry(lost="c")
    return servers


def test_answers_to_many_clients_share_one_copy_while_they_wait() -> None:
    servers = house_with_a_silent_secondary()
    for number in range(64):
        servers.ask("a", f"evaluator-{number}", PullNewer("run", 0, 1, (0, 1), (-1, -1)))
    servers.carry(lost="c")
    assert len(held(servers)) == 64 and copies_of(held(servers)) == 2, "one of each shard"
    before = held(servers)[0].buffers
    servers.ask("a", "client", push(2, 1.0, 1.0, 1.0, 1.0))
    servers.drain("a")
    assert held(servers)[0].buffers == before, "a later update leaves a held answer as it was"


def test_a_pull_beyond_the_bound_of_held_copies_is_left_unanswered_and_answered_later() -> None:
    servers = house_with_a_silent_secondary()
    primary = servers.of["a"].copies[BUCKET]
    for number in range(12):
        servers.ask("a", f"evaluator-{number}", PullNewer("run", 0, 1, (0, 1), (-1, -1)))
        primary.state.updates.metadata.mark_written((0, 1))  # as an update for which the queue has no room
        primary.state.bump_index()
    assert copies_of(held(servers)) == 2 * (_WINDOW + 1)
    servers.carry(lost="c")
    servers.now += 1.0
    servers.say("a", servers.of["a"].tick(servers.now))
    assert len(pulled(servers.carry())) == _WINDOW + 1
    servers.ask("a", "evaluator-11", PullNewer("run", 0, 1, (0, 1), (-1, -1)))
    servers.say("a", servers.of["a"].tick(servers.now))
    assert "evaluator-11" in pulled(servers.carry())
