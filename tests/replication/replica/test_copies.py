"""Copies of a bucket, one message after the other: what the tables in `replication.replica` say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.replication.replica_group import BUCKET, GROUP, SHARDS, ReplicaGroup, push, said

from cotswold.optim.server_rules import Adagrad
from cotswold.paramserver.core.settings import AsyncSettings, QueueLimits
from cotswold.paramserver.core.update_server import UpdateServer
from cotswold.replication.replica.bucket_state import BucketState
from cotswold.replication.replica.group_member import ReplicaRole
from cotswold.replication.replica.settings import ReplicationSettings
from cotswold.shards.core.shard_server import ShardServer
from cotswold.simulate.protocols.lists import ListArithmetic, ListUpdates, ReadOnlyList
from cotswold.wire import (
    CONTROLLERS,
    COORDINATOR,
    Applied,
    Assign,
    CoordinatorState,
    Fence,
    FenceReply,
    Group,
    LearnerCaughtUp,
    LeaseGrant,
    NotPrimary,
    PeerUnreachable,
    Prepare,
    PrimaryUnreachable,
    PulledNewer,
    PullNewer,
    Send,
    Update,
    Write,
    WriteAck,
)


def test_a_state_that_was_frozen_is_told_vector_by_vector_whatever_was_written_first() -> None:
    """The sums of squares are written before the weights, and frozen after them."""

    def kept() -> BucketState[list[float]]:
        server = ShardServer(BUCKET, SHARDS, ListArithmetic())
        settings = AsyncSettings("run", "weights", Adagrad(), {"": 2}, 8, room=QueueLimits(1000, 1000))
        return BucketState(
            server, UpdateServer(server, settings, ListArithmetic(), ListUpdates()), ListArithmetic()
        )

    (squares,) = Adagrad().keeps
    primary, secondary = kept(), kept()
    for number, (name, value) in enumerate({squares: 7.0, "weights": 1.0}.items(), 1):
        primary.receive(COORDINATOR, Write(number, name, (0, 1), ((value,) * 2,) * 2))
        primary.bump_index()
    primary.receive(COORDINATOR, CoordinatorState(1, ((1, "r"),), ((1, 1.0),), 1, 0))
    primary.bump_index()
    assert primary.updates.frozen is not None, "nobody owes a marker"
    push = Update("run", 1, 1, "gradient", (0,), (0,), 1, 1.0, ((0, 2),), 1, (), ((1.0, 1.0),))
    primary.receive("r", push)
    primary.updates.drain()
    primary.bump_index()
    told = primary.changes_since(-1)
    secondary.install(
        Prepare(BUCKET, 1, -1, primary.index, primary.index, told.change, told.names, told.buffers)
    )
    frozen = secondary.updates.frozen
    assert frozen is not None
    assert frozen.vectors == {squares: [[7.0] * 2] * 2, "weights": [[1.0] * 2] * 2}
    assert secondary.vectors == primary.vectors


def test_an_update_is_acknowledged_once_all_members_have_it_and_they_have_its_numbers() -> None:
    house = ReplicaGroup("abc")
    house.begin(GROUP)
    house.ask("a", "client", push(1, 1.0, 2.0, 3.0, 4.0))
    house.drain("a")
    assert said(house.carry(lost="c"), Applied) == [], "one of them lacks it"
    house.now += 0.6
    house.say("a", house.of["a"].tick(house.now))
    (applied,) = said(house.carry(), Applied)
    assert isinstance(applied, Applied) and applied.versions == (1, 1)
    house.settle()
    assert house.weights("a") == house.weights("b") == house.weights("c") == [[1.0, 2.0], [3.0, 4.0]]


def test_a_pull_is_not_answered_by_what_is_not_with_all_members() -> None:
    house = ReplicaGroup("abc")
    house.begin(GROUP)
    house.ask("a", "client", push(1, 1.0, 2.0, 3.0, 4.0))
    house.drain("a")
    house.ask("a", "client", PullNewer("run", 1, 0, (0, 1), (-1, -1)))
    assert said(house.carry(lost="bc"), PulledNewer) == []
    house.now += 0.6
    house.say("a", house.of["a"].tick(house.now))
    (pulled,) = said(house.carry(), PulledNewer)
    assert isinstance(pulled, PulledNewer) and pulled.versions == (1, 1)


def test_whoever_is_elected_commits_what_was_prepared_and_counts_a_retry_once() -> None:
    house = ReplicaGroup("abc")
    house.begin(GROUP)
    house.ask("a", "client", push(1, 1.0, 2.0, 3.0, 4.0))
    house.drain("a")
    house.carry(lost="c")  # b has prepared it, and nobody was told
    house.tell("b", "controller", Fence(1, BUCKET, 2))
    house.tell("c", "controller", Fence(1, BUCKET, 2))
    answers = [each.message for each in house.carry() if isinstance(each.message, FenceReply)]
    assert answers[0].index == answers[1].index + 1, "b is the longest"
    house.assign(Group(BUCKET, 2, "b", ("c",)), "bc")
    house.lease("b")
    house.settle()
    house.ask("b", "client", push(1, 1.0, 2.0, 3.0, 4.0))
    house.drain("b")
    (applied,) = said(house.carry(), Applied)
    assert isinstance(applied, Applied) and applied.number == 1
    house.settle()
    assert house.weights("b") == house.weights("c") == [[1.0, 2.0], [3.0, 4.0]], "it counts once"


def test_a_primary_changes_no_number_in_the_memory_of_a_message() -> None:
    house = ReplicaGroup("ab")
    house.begin(Group(BUCKET, 1, "a", ("b",)))
    house.ask("a", "client", push(1, 1.0, 2.0, 3.0, 4.0))
    house.drain("a")
    house.carry()
    house.assign(Group(BUCKET, 2, "b"), "b")  # at once: nothing that came was copied before
    house.lease("b")
    house.ask("b", "client", push(2, 1.0, 0.0, 0.0, 0.0))
    house.drain("b")
    assert house.weights("b") == [[2.0, 2.0], [3.0, 4.0]]
    assert not any(
        isinstance(each, ReadOnlyList) for each in house.of["b"].copies[BUCKET].state.vectors["weights"]
    )


def test_what_stays_in_the_memory_of_a_message_for_long_is_copied() -> None:
    house = ReplicaGroup("ab")
    house.begin(Group(BUCKET, 1, "a", ("b",)))
    house.ask("a", "client", push(1, 1.0, 2.0, 3.0, 4.0))
    house.drain("a")
    house.carry()
    house.settle()
    rows = house.of["b"].copies[BUCKET].state.vectors["weights"]
    assert rows == [[1.0, 2.0], [3.0, 4.0]] and all(isinstance(each, ReadOnlyList) for each in rows)
    for _ in range(4):
        house.settle()
    assert not any(isinstance(each, ReadOnlyList) for each in rows)


def test_a_primary_whose_lease_is_over_or_which_was_fenced_says_nothing() -> None:
    house = ReplicaGroup("abc")
    house.begin(GROUP)
    house.now += 2000
    house.ask("a", "client", PullNewer("run", 1, 0, (0,), (-1,)))
    assert house.carry() == []
    house.lease("a")
    house.ask("a", "client", PullNewer("run", 1, 0, (0,), (-1,)))
    assert len(said(house.carry(), PulledNewer)) == 1
    house.tell("a", "controller", Fence(1, BUCKET, 2))
    house.carry()
    house.ask("a", "client", PullNewer("run", 1, 0, (0,), (-1,)))
    assert house.carry() == [] and house.of["a"].leads == () and house.of["a"].fenced == ((BUCKET, 2),)


def test_a_secondary_prepares_nothing_of_a_term_that_is_over_nor_of_a_stranger() -> None:
    house = ReplicaGroup("abc")
    house.begin(GROUP)
    copy = house.of["b"].copies[BUCKET]
    index, change = copy.index, house.of["a"].copies[BUCKET].state.changes_since(-1)
    words = (index + 5, index, change.change, change.names, change.buffers)
    house.assign(Group(BUCKET, 2, "a", ("b", "c")), "b")
    house.carry(lost="a")
    house.tell("b", "a", Prepare(BUCKET, 1, -1, *words))
    house.tell("b", "c", Prepare(BUCKET, 2, -1, *words))
    assert copy.index == index and house.waiting == []
    house.tell("b", "controller", Fence(1, BUCKET, 3))
    house.carry(lost="a")
    house.tell("b", "a", Prepare(BUCKET, 2, -1, *words))
    assert copy.index == index and house.waiting == []


def test_a_learner_is_waited_for_before_it_is_a_secondary_and_then_has_everything() -> None:
    house = ReplicaGroup("abcd")
    house.begin(GROUP)
    house.ask("a", "client", push(1, 1.0, 2.0, 3.0, 4.0))
    house.drain("a")
    house.carry()
    house.assign(Group(BUCKET, 2, "a", ("b", "c"), ("d",)))
    outside = house.carry()
    house.settle()
    caught = [each.message for each in [*outside, *house.kept] if isinstance(each.message, LearnerCaughtUp)]
    assert caught and caught[0].learner == "d"
    house.ask("a", "client", push(2, 1.0, 0.0, 0.0, 0.0))
    house.drain("a")
    assert said(house.carry(lost="d"), Applied) == [], "it is waited for from then on"
    house.assign(Group(BUCKET, 3, "a", ("b", "c", "d")))
    house.settle()
    house.settle()
    assert house.weights("d") == house.weights("a") == [[2.0, 2.0], [3.0, 4.0]]


def test_a_primary_that_was_and_a_copy_that_was_left_out_forget_what_they_have() -> None:
    house = ReplicaGroup("abc")
    house.begin(GROUP)
    house.ask("a", "client", push(1, 9.0, 9.0, 9.0, 9.0))
    house.drain("a")
    house.carry(lost="bc")  # nobody else has it
    house.assign(Group(BUCKET, 2, "b"), "b")
    house.assign(Group(BUCKET, 3, "b", (), ("a", "c")))  # a and c have not heard of 2
    assert house.of["a"].copies[BUCKET].index == -1 and house.of["c"].copies[BUCKET].index == -1
    house.lease("b")
    house.carry()
    house.settle()
    assert house.weights("a") == house.weights("b") == house.weights("c") == [[0.0, 0.0], [0.0, 0.0]]
    assert house.of["a"].copies[BUCKET].role is ReplicaRole.LEARNER


def test_with_fewer_members_than_wanted_updates_wait_and_pulls_do_not() -> None:
    house = ReplicaGroup("abc", ReplicationSettings(min_members=2))
    house.begin(GROUP)
    house.assign(Group(BUCKET, 2, "a"))
    house.carry()
    house.ask("a", "client", push(1, 1.0, 2.0, 3.0, 4.0))
    house.drain("a")
    house.ask("a", "client", PullNewer("run", 1, 0, (0,), (-1,)))
    outside = house.carry()
    assert said(outside, Applied) == [] and len(said(outside, PulledNewer)) == 1
    assert house.of["a"].copies[BUCKET].is_waiting
    assert house.of["a"].under_replicated() == (1, 1) and house.of["a"].under_replicated(lambda name: name != BUCKET) == (0, 0)
    house.assign(Group(BUCKET, 3, "a", (), ("b",)))
    house.settle()
    house.assign(Group(BUCKET, 4, "a", ("b",)))
    house.settle()
    house.drain("a")
    assert len(said(house.carry(), Applied)) == 1 and house.of["a"].under_replicated() == (0, 0)


def test_an_answer_that_is_asked_for_again_and_again_is_held_once() -> None:
    house = ReplicaGroup("ac", ReplicationSettings(min_members=2))
    house.begin(Group(BUCKET, 1, "a", ("c",)))
    house.assign(Group(BUCKET, 2, "a"), "a")  # fewer than there must be
    house.ask("a", COORDINATOR, CoordinatorState(2, ((1, "client"),), ((1, 1.0),), 0, 0))
    for _ in range(100):
        house.ask("a", "client", PullNewer("run", 1, 2, (0, 1), (-1, -1)))
        house.ask("a", COORDINATOR, CoordinatorState(2, ((1, "client"),), ((1, 1.0),), 0, 0))
    assert house.carry() == []
    assert len(house.of["a"].copies[BUCKET]._pending_replies) == 2
    house.assign(Group(BUCKET, 3, "a", (), ("c",)))
    house.settle()
    house.assign(Group(BUCKET, 4, "a", ("c",)))
    told = house.carry()
    house.settle()
    assert len(said([*told, *house.kept], PulledNewer)) == 1 and not house.of["a"].copies[BUCKET]._pending_replies


def test_silence_is_told_to_the_controllers_by_whoever_hears_it() -> None:
    house = ReplicaGroup("abc")
    house.begin(GROUP)
    found = []
    for _ in range(8):
        house.now += 0.1
        for name, keeper in house.of.items():
            house.say(name, keeper.tick(house.now))
        found += [each.message for each in house.carry(lost="c") if each.to == CONTROLLERS]
    assert [each.replica for each in found if isinstance(each, PeerUnreachable)][:1] == ["c"]
    assert not any(isinstance(each, PrimaryUnreachable) for each in found), "b hears the primary"
    house.now += 1
    house.say("c", house.of["c"].tick(house.now))
    (proposal,) = [each.message for each in house.carry() if isinstance(each.message, PrimaryUnreachable)]
    assert (proposal.server, proposal.primary, proposal.term) == ("c", "a", 1)


def test_what_a_controller_of_an_epoch_that_is_over_says_counts_for_nothing() -> None:
    house = ReplicaGroup("ab")
    house.tell("a", "controller", Assign(5, Group(BUCKET, 1, "a", ("b",))))
    house.tell("a", "another", Assign(4, Group(BUCKET, 2, "b", ("a",))))
    house.tell("a", "another", Fence(4, BUCKET, 9))
    copy = house.of["a"].copies[BUCKET]
    assert copy.group.term == 1 and copy.fence == 1
    number = house.of["a"].lease.request(house.now)
    house.tell("a", "another", LeaseGrant(4, "a", number, 9.0))
    assert not house.of["a"].lease.holds(house.now)


def test_weights_are_written_before_anything_is_applied_and_not_again() -> None:
    house = ReplicaGroup("a")
    house.begin(Group(BUCKET, 1, "a"))
    house.ask("a", "client", push(1, 1.0, 2.0, 3.0, 4.0))
    house.drain("a")
    house.ask("a", COORDINATOR, Write(1, "weights", (0, 1), ((0.0, 0.0), (0.0, 0.0))))
    assert len(said(house.carry(), WriteAck)) == 1
    assert house.weights("a") == [[1.0, 2.0], [3.0, 4.0]]


def test_weights_are_written_also_where_an_order_was_heard_before() -> None:
    """The coordinator's orders go to a bucket as soon as it has a primary, whichever others have none yet."""
    house = ReplicaGroup("a")
    house.assign(Group(BUCKET, 1, "a"))
    house.lease("a")
    house.ask("a", COORDINATOR, CoordinatorState(1, ((1, "client"),), ((1, 1.0),), 0, 0))
    house.ask("a", COORDINATOR, Write(1, "weights", (0, 1), ((1.0, 2.0), (3.0, 4.0))))
    assert len(said(house.carry(), WriteAck)) == 1
    assert house.weights("a") == [[1.0, 2.0], [3.0, 4.0]]


def test_a_server_that_leads_nothing_sends_clients_elsewhere() -> None:
    house = ReplicaGroup("ab")
    house.assign(Group(BUCKET, 3, "a", ("b",)))
    house.carry()
    house.ask("b", "client", PullNewer("run", 0, 0, (0,), (-1,)))
    assert house.carry() == [Send("client", NotPrimary(BUCKET, 3, "a"))]


def test_a_primary_knows_in_which_term_and_from_when_until_when_it_spoke() -> None:
    house = ReplicaGroup("ac")
    house.begin(Group(BUCKET, 1, "a", ("c",)))
    house.ask("a", COORDINATOR, CoordinatorState(2, ((1, "client"),), ((1, 1.0),), 0, 0))
    copy = house.of["a"].copies[BUCKET]
    before = copy.last_replies
    house.now += 0.1
    house.ask("a", COORDINATOR, CoordinatorState(3, ((1, "client"),), ((1, 1.0),), 0, 0))
    assert copy.last_replies == before, "nothing more is committed"
    house.carry()
    term, since, until = copy.last_replies
    assert term == 1 and since <= before[2] < until == house.now
    house.now += 0.1
    house.ask("a", COORDINATOR, CoordinatorState(4, ((1, "client"),), ((1, 1.0),), 0, 0))
    house.carry()
    assert copy.last_replies == (1, since, house.now)
    assert house.of["c"].copies[BUCKET].last_replies[0] == 0


@pytest.mark.parametrize(("term", "life"), [(1 << 63, 0), (2, 1 << 23), (2, 1 << 64), (2, -1)])
def test_a_group_of_which_the_versions_could_not_be_said_counts_for_nothing(term: int, life: int) -> None:
    house = ReplicaGroup("ac")
    house.begin(Group(BUCKET, 1, "a", ("c",)))
    before = house.of["a"].copies[BUCKET].group
    house.assign(Group(BUCKET, term, "a", ("c",), (), life), "a")
    assert house.of["a"].copies[BUCKET].group == before


def test_versions_to_which_none_can_be_added_are_not_prepared() -> None:
    house = ReplicaGroup("ac")
    house.begin(Group(BUCKET, 1, "a", ("c",)))
    told = house.of["a"].copies[BUCKET].state.changes_since(-1)
    takes = house.of["c"].copies[BUCKET].state.can_apply
    index = house.of["c"].copies[BUCKET].index + 1

    def prepare(version: int) -> Prepare:
        change = replace(told.change, versions=tuple(version for _ in told.change.versions))
        return Prepare(BUCKET, 1, -1, index, 0, change, told.names, told.buffers)

    assert takes(prepare(5), None) and not takes(prepare(1 << 63), None) and not takes(prepare(-1), None)
