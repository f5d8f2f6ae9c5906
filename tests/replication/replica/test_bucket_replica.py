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

    (squares,) = Adagrad().state_names
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
    servers = ReplicaGroup("abc")
    servers.begin(GROUP)
    servers.ask("a", "client", push(1, 1.0, 2.0, 3.0, 4.0))
    servers.drain("a")
    assert said(servers.carry(lost="c"), Applied) == [], "one of them lacks it"
    servers.now += 0.6
    servers.say("a", servers.of["a"].tick(servers.now))
    (applied,) = said(servers.carry(), Applied)
    assert isinstance(applied, Applied) and applied.versions == (1, 1)
    servers.settle()
    assert servers.weights("a") == servers.weights("b") == servers.weights("c") == [[1.0, 2.0], [3.0, 4.0]]


def test_a_pull_is_not_answered_by_what_is_not_with_all_members() -> None:
    servers = ReplicaGroup("abc")
    servers.begin(GROUP)
    servers.ask("a", "client", push(1, 1.0, 2.0, 3.0, 4.0))
    servers.drain("a")
    servers.ask("a", "client", PullNewer("run", 1, 0, (0, 1), (-1, -1)))
    assert said(servers.carry(lost="bc"), PulledNewer) == []
    servers.now += 0.6
    servers.say("a", servers.of["a"].tick(servers.now))
    (pulled,) = said(servers.carry(), PulledNewer)
    assert isinstance(pulled, PulledNewer) and pulled.versions == (1, 1)


def test_whoever_is_elected_commits_what_was_prepared_and_counts_a_retry_once() -> None:
    servers = ReplicaGroup("abc")
    servers.begin(GROUP)
    servers.ask("a", "client", push(1, 1.0, 2.0, 3.0, 4.0))
    servers.drain("a")
    servers.carry(lost="c")  # b has prepared it, and nobody was told
    servers.tell("b", "controller", Fence(1, BUCKET, 2))
    servers.tell("c", "controller", Fence(1, BUCKET, 2))
    answers = [each.message for each in servers.carry() if isinstance(each.message, FenceReply)]
    assert answers[0].index == answers[1].index + 1, "b is the longest"
    servers.assign(Group(BUCKET, 2, "b", ("c",)), "bc")
    servers.lease("b")
    servers.settle()
    servers.ask("b", "client", push(1, 1.0, 2.0, 3.0, 4.0))
    servers.drain("b")
    (applied,) = said(servers.carry(), Applied)
    assert isinstance(applied, Applied) and applied.number == 1
    servers.settle()
    assert servers.weights("b") == servers.weights("c") == [[1.0, 2.0], [3.0, 4.0]], "it counts once"


def test_a_primary_changes_no_number_in_the_memory_of_a_message() -> None:
    servers = ReplicaGroup("ab")
    servers.begin(Group(BUCKET, 1, "a", ("b",)))
    servers.ask("a", "client", push(1, 1.0, 2.0, 3.0, 4.0))
    servers.drain("a")
    servers.carry()
    servers.assign(Group(BUCKET, 2, "b"), "b")  # at once: nothing that came was copied before
    servers.lease("b")
    servers.ask("b", "client", push(2, 1.0, 0.0, 0.0, 0.0))
    servers.drain("b")
    assert servers.weights("b") == [[2.0, 2.0], [3.0, 4.0]]
    assert not any(
        isinstance(each, ReadOnlyList) for each in servers.of["b"].copies[BUCKET].state.vectors["weights"]
    )


def test_what_stays_in_the_memory_of_a_message_for_long_is_copied() -> None:
    servers = ReplicaGroup("ab")
    servers.begin(Group(BUCKET, 1, "a", ("b",)))
    servers.ask("a", "client", push(1, 1.0, 2.0, 3.0, 4.0))
    servers.drain("a")
    servers.carry()
    servers.settle()
    rows = servers.of["b"].copies[BUCKET].state.vectors["weights"]
    assert rows == [[1.0, 2.0], [3.0, 4.0]] and all(isinstance(each, ReadOnlyList) for each in rows)
    for _ in range(4):
        servers.settle()
    assert not any(isinstance(each, ReadOnlyList) for each in rows)


def test_a_primary_whose_lease_is_over_or_which_was_fenced_says_nothing() -> None:
    servers = ReplicaGroup("abc")
    servers.begin(GROUP)
    servers.now += 2000
    servers.ask("a", "client", PullNewer("run", 1, 0, (0,), (-1,)))
    assert servers.carry() == []
    servers.lease("a")
    servers.ask("a", "client", PullNewer("run", 1, 0, (0,), (-1,)))
    assert len(said(servers.carry(), PulledNewer)) == 1
    servers.tell("a", "controller", Fence(1, BUCKET, 2))
    servers.carry()
    servers.ask("a", "client", PullNewer("run", 1, 0, (0,), (-1,)))
    assert servers.carry() == [] and servers.of["a"].leads == () and servers.of["a"].fenced == ((BUCKET, 2),)


def test_a_secondary_prepares_nothing_of_a_term_that_is_over_nor_of_a_stranger() -> None:
    servers = ReplicaGroup("abc")
    servers.begin(GROUP)
    copy = servers.of["b"].copies[BUCKET]
    index, change = copy.index, servers.of["a"].copies[BUCKET].state.changes_since(-1)
    words = (index + 5, index, change.change, change.names, change.buffers)
    servers.assign(Group(BUCKET, 2, "a", ("b", "c")), "b")
    servers.carry(lost="a")
    servers.tell("b", "a", Prepare(BUCKET, 1, -1, *words))
    servers.tell("b", "c", Prepare(BUCKET, 2, -1, *words))
    assert copy.index == index and servers.waiting == []
    servers.tell("b", "controller", Fence(1, BUCKET, 3))
    servers.carry(lost="a")
    servers.tell("b", "a", Prepare(BUCKET, 2, -1, *words))
    assert copy.index == index and servers.waiting == []


def test_a_learner_is_waited_for_before_it_is_a_secondary_and_then_has_everything() -> None:
    servers = ReplicaGroup("abcd")
    servers.begin(GROUP)
    servers.ask("a", "client", push(1, 1.0, 2.0, 3.0, 4.0))
    servers.drain("a")
    servers.carry()
    servers.assign(Group(BUCKET, 2, "a", ("b", "c"), ("d",)))
    outside = servers.carry()
    servers.settle()
    caught = [each.message for each in [*outside, *servers.kept] if isinstance(each.message, LearnerCaughtUp)]
    assert caught and caught[0].learner == "d"
    servers.ask("a", "client", push(2, 1.0, 0.0, 0.0, 0.0))
    servers.drain("a")
    assert said(servers.carry(lost="d"), Applied) == [], "it is waited for from then on"
    servers.assign(Group(BUCKET, 3, "a", ("b", "c", "d")))
    servers.settle()
    servers.settle()
    assert servers.weights("d") == servers.weights("a") == [[2.0, 2.0], [3.0, 4.0]]


def test_a_primary_that_was_and_a_copy_that_was_left_out_forget_what_they_have() -> None:
    servers = ReplicaGroup("abc")
    servers.begin(GROUP)
    servers.ask("a", "client", push(1, 9.0, 9.0, 9.0, 9.0))
    servers.drain("a")
    servers.carry(lost="bc")  # nobody else has it
    servers.assign(Group(BUCKET, 2, "b"), "b")
    servers.assign(Group(BUCKET, 3, "b", (), ("a", "c")))  # a and c have not heard of 2
    assert servers.of["a"].copies[BUCKET].index == -1 and servers.of["c"].copies[BUCKET].index == -1
    servers.lease("b")
    servers.carry()
    servers.settle()
    assert servers.weights("a") == servers.weights("b") == servers.weights("c") == [[0.0, 0.0], [0.0, 0.0]]
    assert servers.of["a"].copies[BUCKET].role is ReplicaRole.LEARNER


def test_with_fewer_members_than_wanted_updates_wait_and_pulls_do_not() -> None:
    servers = ReplicaGroup("abc", ReplicationSettings(min_members=2))
    servers.begin(GROUP)
    servers.assign(Group(BUCKET, 2, "a"))
    servers.carry()
    servers.ask("a", "client", push(1, 1.0, 2.0, 3.0, 4.0))
    servers.drain("a")
    servers.ask("a", "client", PullNewer("run", 1, 0, (0,), (-1,)))
    outside = servers.carry()
    assert said(outside, Applied) == [] and len(said(outside, PulledNewer)) == 1
    assert servers.of["a"].copies[BUCKET].is_waiting
    assert servers.of["a"].under_replicated() == (1, 1)
    assert servers.of["a"].under_replicated(lambda name: name != BUCKET) == (0, 0)
    servers.assign(Group(BUCKET, 3, "a", (), ("b",)))
    servers.settle()
    servers.assign(Group(BUCKET, 4, "a", ("b",)))
    servers.settle()
    servers.drain("a")
    assert len(said(servers.carry(), Applied)) == 1 and servers.of["a"].under_replicated() == (0, 0)


def test_an_answer_that_is_asked_for_again_and_again_is_held_once() -> None:
    servers = ReplicaGroup("ac", ReplicationSettings(min_members=2))
    servers.begin(Group(BUCKET, 1, "a", ("c",)))
    servers.assign(Group(BUCKET, 2, "a"), "a")  # fewer than there must be
    servers.ask("a", COORDINATOR, CoordinatorState(2, ((1, "client"),), ((1, 1.0),), 0, 0))
    for _ in range(100):
        servers.ask("a", "client", PullNewer("run", 1, 2, (0, 1), (-1, -1)))
        servers.ask("a", COORDINATOR, CoordinatorState(2, ((1, "client"),), ((1, 1.0),), 0, 0))
    assert servers.carry() == []
    assert len(servers.of["a"].copies[BUCKET]._pending_replies) == 2
    servers.assign(Group(BUCKET, 3, "a", (), ("c",)))
    servers.settle()
    servers.assign(Group(BUCKET, 4, "a", ("c",)))
    told = servers.carry()
    servers.settle()
    assert len(said([*told, *servers.kept], PulledNewer)) == 1
    assert not servers.of["a"].copies[BUCKET]._pending_replies


def test_silence_is_told_to_the_controllers_by_whoever_hears_it() -> None:
    servers = ReplicaGroup("abc")
    servers.begin(GROUP)
    found = []
    for _ in range(8):
        servers.now += 0.1
        for name, keeper in servers.of.items():
            servers.say(name, keeper.tick(servers.now))
        found += [each.message for each in servers.carry(lost="c") if each.to == CONTROLLERS]
    assert [each.replica for each in found if isinstance(each, PeerUnreachable)][:1] == ["c"]
    assert not any(isinstance(each, PrimaryUnreachable) for each in found), "b hears the primary"
    servers.now += 1
    servers.say("c", servers.of["c"].tick(servers.now))
    (proposal,) = [each.message for each in servers.carry() if isinstance(each.message, PrimaryUnreachable)]
    assert (proposal.server, proposal.primary, proposal.term) == ("c", "a", 1)


def test_what_a_controller_of_an_epoch_that_is_over_says_counts_for_nothing() -> None:
    servers = ReplicaGroup("ab")
    servers.tell("a", "controller", Assign(5, Group(BUCKET, 1, "a", ("b",))))
    servers.tell("a", "another", Assign(4, Group(BUCKET, 2, "b", ("a",))))
    servers.tell("a", "another", Fence(4, BUCKET, 9))
    copy = servers.of["a"].copies[BUCKET]
    assert copy.group.term == 1 and copy.fence == 1
    number = servers.of["a"].lease.request(servers.now)
    servers.tell("a", "another", LeaseGrant(4, "a", number, 9.0))
    assert not servers.of["a"].lease.holds(servers.now)


def test_weights_are_written_before_anything_is_applied_and_not_again() -> None:
    servers = ReplicaGroup("a")
    servers.begin(Group(BUCKET, 1, "a"))
    servers.ask("a", "client", push(1, 1.0, 2.0, 3.0, 4.0))
    servers.drain("a")
    servers.ask("a", COORDINATOR, Write(1, "weights", (0, 1), ((0.0, 0.0), (0.0, 0.0))))
    assert len(said(servers.carry(), WriteAck)) == 1
    assert servers.weights("a") == [[1.0, 2.0], [3.0, 4.0]]


def test_weights_are_written_also_where_an_order_was_heard_before() -> None:
    """The coordinator's orders go to a bucket as soon as it has a primary, whichever others have none yet."""
    servers = ReplicaGroup("a")
    servers.assign(Group(BUCKET, 1, "a"))
    servers.lease("a")
    servers.ask("a", COORDINATOR, CoordinatorState(1, ((1, "client"),), ((1, 1.0),), 0, 0))
    servers.ask("a", COORDINATOR, Write(1, "weights", (0, 1), ((1.0, 2.0), (3.0, 4.0))))
    assert len(said(servers.carry(), WriteAck)) == 1
    assert servers.weights("a") == [[1.0, 2.0], [3.0, 4.0]]


def test_a_server_that_leads_nothing_sends_clients_elsewhere() -> None:
    servers = ReplicaGroup("ab")
    servers.assign(Group(BUCKET, 3, "a", ("b",)))
    servers.carry()
    servers.ask("b", "client", PullNewer("run", 0, 0, (0,), (-1,)))
    assert servers.carry() == [Send("client", NotPrimary(BUCKET, 3, "a"))]


def test_a_primary_knows_in_which_term_and_from_when_until_when_it_spoke() -> None:
    servers = ReplicaGroup("ac")
    servers.begin(Group(BUCKET, 1, "a", ("c",)))
    servers.ask("a", COORDINATOR, CoordinatorState(2, ((1, "client"),), ((1, 1.0),), 0, 0))
    copy = servers.of["a"].copies[BUCKET]
    before = copy.last_replies
    servers.now += 0.1
    servers.ask("a", COORDINATOR, CoordinatorState(3, ((1, "client"),), ((1, 1.0),), 0, 0))
    assert copy.last_replies == before, "nothing more is committed"
    servers.carry()
    term, since, until = copy.last_replies
    assert term == 1 and since <= before[2] < until == servers.now
    servers.now += 0.1
    servers.ask("a", COORDINATOR, CoordinatorState(4, ((1, "client"),), ((1, 1.0),), 0, 0))
    servers.carry()
    assert copy.last_replies == (1, since, servers.now)
    assert servers.of["c"].copies[BUCKET].last_replies[0] == 0


@pytest.mark.parametrize(("term", "life"), [(1 << 63, 0), (2, 1 << 23), (2, 1 << 64), (2, -1)])
def test_a_group_of_which_the_versions_could_not_be_said_counts_for_nothing(term: int, life: int) -> None:
    servers = ReplicaGroup("ac")
    servers.begin(Group(BUCKET, 1, "a", ("c",)))
    before = servers.of["a"].copies[BUCKET].group
    servers.assign(Group(BUCKET, term, "a", ("c",), (), life), "a")
    assert servers.of["a"].copies[BUCKET].group == before


def test_versions_to_which_none_can_be_added_are_not_prepared() -> None:
    servers = ReplicaGroup("ac")
    servers.begin(Group(BUCKET, 1, "a", ("c",)))
    told = servers.of["a"].copies[BUCKET].state.changes_since(-1)
    takes = servers.of["c"].copies[BUCKET].state.can_apply
    index = servers.of["c"].copies[BUCKET].index + 1

    def prepare(version: int) -> Prepare:
        change = replace(told.change, versions=tuple(version for _ in told.change.versions))
        return Prepare(BUCKET, 1, -1, index, 0, change, told.names, told.buffers)

    assert takes(prepare(5), None) and not takes(prepare(1 << 63), None) and not takes(prepare(-1), None)
