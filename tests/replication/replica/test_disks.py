"""A bucket on disk, message by message: the tables of saving and reviving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.replication.replica_group import BUCKET, ReplicaGroup, contents, push, said

from cotswold.paramserver.core.durability import LedgerDurability
from cotswold.replication.controller.disk_recovery import DiskRecovery
from cotswold.replication.replica.follower_progress import NO_INDEX
from cotswold.replication.replica.group_member import ReplicaRole
from cotswold.replication.replica.saved_bucket import SavedBucket, disk_of, next_server_name, restored_on
from cotswold.replication.replica.server import ReplicaServer
from cotswold.replication.replica.settings import ReplicationSettings
from cotswold.shards.core.sample_ledger import SampleLedger
from cotswold.shards.core.versions import updates_between, version_after_restarts
from cotswold.wire import (
    COORDINATOR,
    Applied,
    Assign,
    BucketEnvelope,
    CoordinatorState,
    CoordinatorStateAck,
    DiskStateReply,
    DiskStateRequest,
    Group,
    Heartbeat,
    LeaseGrant,
    NotPrimary,
    PulledNewer,
    PullNewer,
    Send,
    Update,
    Write,
)

SESSIONS = ((1, "one"),)


class OnDisk:
    """A server with a disk, and a client that acts as coordinator and replica."""

    def __init__(self, name: str) -> None:
        self.name, self.now, self.term = name, 0.0, 1
        self.keeper = ReplicaServer(name, "host", "address", contents, ReplicationSettings(saves=True), 0.0)
        self.disk: dict[str, SavedBucket] = {}

    def assign(self, group: Group) -> None:
        self.term = group.term
        self.keeper.receive("controller", Assign(1, group), self.now)
        self.lease()

    def lease(self) -> None:
        self.now += 1.0
        for each in self.keeper.tick(self.now):
            if isinstance(each.message, Heartbeat):
                self.keeper.receive(
                    "controller", LeaseGrant(1, self.name, each.message.number, 1.0), self.now
                )

    def say(
        self, sender: str, message: Update | PullNewer | CoordinatorState | Write, term: int | None = None
    ) -> list[Send]:
        said = BucketEnvelope(BUCKET, self.term if term is None else term, message)
        sends = [*self.keeper.receive(sender, said, self.now), *self.keeper.drain(self.now)]
        return [
            Send(each.to, each.message.message) if isinstance(each.message, BucketEnvelope) else each
            for each in sends
        ]

    def save(self) -> None:
        for number, saved in self.keeper.saves():
            before = self.disk.get(saved.bucket)
            numbers = {**({} if before is None else before.numbers), **saved.numbers}
            self.disk[saved.bucket] = SavedBucket(**{**vars(saved), "numbers": numbers})
            self.keeper.saved(number)

    def push(self, number: int, session: int = 1, by: float = 1.0) -> list[Send]:
        place = (number - 1, number)
        gradients = ((-by, -by), (-by, -by))
        update = Update(
            *("run", session, number, "gradient", (0, 1), (0, 0), 1, 1.0, (place,), 0, (), gradients)
        )
        return self.say("one" if session == 1 else "two", update)

    def order(
        self, number: int, sessions: tuple[tuple[int, str], ...] = SESSIONS, settled: int = 0
    ) -> CoordinatorStateAck:
        return self.answer(CoordinatorState(number, sessions, ((1, 1.0),), 0, settled))

    def answer(self, order: CoordinatorState) -> CoordinatorStateAck:
        (send,) = self.say(COORDINATOR, order)
        assert isinstance(send.message, CoordinatorStateAck)
        return send.message

    def begin(self) -> None:
        self.assign(Group(BUCKET, 1, self.name))
        zeros = (0.0, 0.0)
        self.say(COORDINATOR, Write(1, "weights", (0, 1), (zeros, zeros)))
        self.order(1)

    @property
    def weights(self) -> list[list[float]]:
        return [list(each) for each in self.keeper.copies[BUCKET].state.vectors["weights"]]


def reborn(before: OnDisk, term: int = 2) -> OnDisk:
    """Return the server that has the disk of a dead one."""
    after = OnDisk(next_server_name(before.name))
    after.disk = before.disk
    (asked,) = [after.keeper.receive("controller", DiskStateRequest(1, BUCKET), after.now)]
    assert asked == [], "first it is read"
    assert after.keeper.take_reads() == [BUCKET]
    after.keeper.on_read(BUCKET, after.disk.get(BUCKET))
    (found,) = after.keeper.receive("controller", DiskStateRequest(1, BUCKET), after.now)
    assert isinstance(found.message, DiskStateReply) and found.message.server == after.name
    after.assign(Group(BUCKET, term, after.name, incarnation=term))
    return after


def test_a_saved_state_begins_a_new_incarnation_without_later_changes() -> None:
    server = OnDisk("server-0")
    server.begin()
    server.push(1)
    server.save()
    server.push(2)
    after = reborn(server)
    assert after.weights == [[1.0, 1.0]] * 2, "the second is lost"
    answer = after.order(2)
    assert (answer.incarnation, answer.restored) == (2, 1)
    assert {session: applied for session, applied, _ in answer.samples} == {1: ((0, 1),)}


def test_numbers_that_did_not_change_are_saved_once_and_are_there_all_the_same() -> None:
    server = OnDisk("server-0")
    server.begin()
    server.save()
    change = Update("run", 1, 1, "gradient", (1,), (0,), 1, 1.0, ((0, 1),), 0, (), ((-1.0, -1.0),))
    server.say("one", change)
    ((number, saved),) = server.keeper.saves()
    assert set(saved.numbers) == {("weights", 1)} and saved.change.shards == (0, 1)
    server.keeper.unsaved(number)
    ((_, again),) = server.keeper.saves()
    assert set(again.numbers) == {("weights", 1)}, "what the disk did not take is given again"
    server.save()
    assert not list(server.keeper.saves())


def test_in_a_new_incarnation_old_sessions_push_no_more_and_new_ones_do() -> None:
    server = OnDisk("server-0")
    server.begin()
    server.push(1)
    server.save()
    after = reborn(server)
    assert after.push(2) == [], "nobody knows yet that there is another life"
    after.order(2)
    assert after.push(2) == [], "the coordinator lets it join anew"
    answer = after.order(3, ((2, "two"),))
    assert {session: applied for session, applied, _ in answer.samples} == {1: ((0, 1),), 2: ()}
    (applied,) = after.push(1, session=2)
    assert isinstance(applied.message, Applied) and after.weights == [[2.0, 2.0]] * 2
    assert after.order(4, ((2, "two"),)).earlier_sessions == ((1, ((0, 1),)),), "until it is settled"
    assert after.order(5, ((2, "two"),), settled=1).earlier_sessions == ()


def test_a_new_incarnation_omits_nothing_from_its_answers_until_the_coordinator_knows_it() -> None:
    server = OnDisk("server-0")
    server.begin()
    server.push(1)
    server.save()
    known = CoordinatorState(2, SESSIONS, ((1, 1.0),), 0, 0, recorded=((0, 1),))
    assert server.answer(known).samples == ((1, (), ()),), "its coordinator knows of this place"
    after = reborn(server)
    assert after.answer(known).samples == ((1, ((0, 1),), ()),)
    heard = replace(known, number=3, incarnations=((BUCKET, after.keeper.copies[BUCKET].group.incarnation),))
    assert after.answer(heard).samples == ((1, (), ()),)


def test_versions_are_greater_in_a_new_incarnation_and_a_client_with_an_older_one_gets_the_shard() -> None:
    server = OnDisk("server-0")
    server.begin()
    server.save()
    for number in (1, 2, 3):
        server.push(number)
    after = reborn(server)
    (pulled,) = after.say("reader", PullNewer("run", 0, 0, (0, 1), (3, 3)))
    assert isinstance(pulled.message, PulledNewer) and pulled.message.shards == (0, 1)
    assert min(pulled.message.versions) > 3 and updates_between(pulled.message.versions[0], 0) == 0


def test_messages_from_before_an_incarnation_are_ignored_in_it() -> None:
    server = OnDisk("server-0")
    server.begin()
    server.save()
    after = reborn(server)
    said = after.say(COORDINATOR, CoordinatorState(7, SESSIONS, ((1, 1.0),), 0, 0), term=1)
    assert said == [Send(COORDINATOR, NotPrimary(BUCKET, 2, "server-0.1"))]


def test_an_order_is_saved_once_every_member_has_it_on_its_disk_in_this_term() -> None:
    server = OnDisk("server-0")
    server.begin()
    assert server.order(2).durable_state == 0, "nothing is on a disk"
    server.save()
    assert server.order(3).durable_state == 2
    server.assign(Group(BUCKET, 2, server.name))
    server.order(4)
    assert server.order(5).durable_state == 2, "in another term it is to be saved anew"
    server.save()
    assert server.order(6).durable_state == 5


def test_a_disk_that_is_damaged_is_given_everything_again() -> None:
    server = OnDisk("server-0")
    server.begin()
    server.save()
    assert not list(server.keeper.saves())
    assert server.keeper.damaged(BUCKET)
    ((_, saved),) = server.keeper.saves()
    assert set(saved.numbers) == {("weights", 0), ("weights", 1)}
    assert not server.keeper.damaged("bucket 1"), "of which there is nothing here"


def test_of_a_disk_that_has_nothing_or_another_bucket_nothing_is_found() -> None:
    server = OnDisk("server-0")
    server.begin()
    server.save()
    for has in (None, SavedBucket(**{**vars(server.disk[BUCKET]), "change": _of_shards(server, (7,))})):
        after = OnDisk("server-0.1")
        after.keeper.receive("controller", DiskStateRequest(1, BUCKET), 0.0)
        after.keeper.on_read(BUCKET, has)
        (found,) = after.keeper.receive("controller", DiskStateRequest(1, BUCKET), 0.0)
        assert isinstance(found.message, DiskStateReply) and found.message.index == NO_INDEX


def _of_shards(server: OnDisk, shards: tuple[int, ...]) -> object:
    change = server.disk[BUCKET].change
    return type(change)(**{**vars(change), "shards": shards})


# --- controllers ---


def found(server: str, life: int = 0, term: int = 3, index: int = 5) -> DiskStateReply:
    return DiskStateReply(BUCKET, server, life, term, index)


def revival(*members: str) -> DiskRecovery:
    return DiskRecovery(Group(BUCKET, 3, members[0], members[1:]), 0.0)


PATIENCE = (3.0, 30.0)


def test_the_server_that_lost_the_least_begins_the_new_incarnation() -> None:
    asked = revival("a", "b", "c")
    living = ["a.1", "b.1", "c.1", "d"]
    assert [each.to for each in asked.disk_requests(living, 1, 0.0, 0.25)] == living
    for each in (found("a.1", index=5), found("b.1", index=7), found("c.1", term=2, index=9)):
        asked.record_reply(each, 0.0)
    assert asked.result(living, (), 0.1, PATIENCE) is None, "one has not answered"
    asked.record_reply(found("d", life=0, term=1, index=20), 0.0)
    assert asked.result(living, (), 0.1, PATIENCE) == Group(BUCKET, 4, "b.1", incarnation=4)


def test_servers_that_acted_in_terms_of_which_a_restored_state_knows_nothing_take_its_groups() -> None:
    """The metadata was restored from disks older than a server's memory."""
    asked = revival("a.restored")
    for each in (found("a.1", term=3), found("b", term=9, index=2)):
        asked.record_reply(each, 0.0)
    decided = asked.result(["a.1", "b"], (), 0.1, PATIENCE)
    assert decided is not None and decided.primary == "b" and decided.term > 9
    alone = revival("a.restored")
    alone.record_reply(found("a.1", term=3), 0.0)
    decided = alone.result(["a.1"], (), 0.1, PATIENCE)
    assert decided is not None and decided.term > 9, "b may come later"


def made_from_disks(*disks: str) -> DiskRecovery:
    """Return a bucket of metadata that was restored from these disks."""
    return revival(*map(restored_on, disks))


def decision(asked: DiskRecovery, living: Sequence[str], now: float) -> str:
    """Return the chosen server; ``known`` are the live servers and the disks in the metadata."""
    ended = asked.group.members
    found = asked.result(living, ended, now, (60.0, 60.0), (*living, *ended))
    return "" if found is None else found.primary


def test_a_state_made_from_disks_waits_for_all_of_them_though_the_best_is_there() -> None:
    asked = made_from_disks("a", "b")
    asked.record_reply(found("a.1", index=5), 0.0)
    assert decision(asked, ["a.1"], 10.0) == "" and asked.silent_members == ["b"]
    asked.record_reply(found("b.1", index=7), 10.0)
    assert decision(asked, ["a.1", "b.1"], 10.1) == "b.1", "it came 10 s late, and has more"


def test_a_state_made_from_disks_waits_for_those_that_the_best_of_them_names() -> None:
    """The disk of one host may have a bucket that has since moved to two others."""
    asked = made_from_disks("a")
    asked.record_reply(replace(found("a.1", term=3), members=("a", "b")), 0.0)
    assert decision(asked, ["a.1"], 1.0) == "" and asked.silent_members == ["b"]
    asked.record_reply(replace(found("b.1", term=5), members=("b.1", "c")), 2.0)
    assert decision(asked, ["a.1", "b.1"], 3.0) == "" and asked.silent_members == ["c"]
    asked.record_reply(replace(found("c.2", term=7), members=("c.2",)), 9.0)
    assert decision(asked, ["a.1", "b.1", "c.2"], 9.1) == "c.2"


def test_a_disk_that_does_not_come_is_waited_for_a_minute() -> None:
    asked = made_from_disks("a", "b")
    asked.record_reply(found("a.1"), 0.0)
    assert decision(asked, ["a.1"], 59.0) == "" and decision(asked, ["a.1"], 60.0) == "a.1"


def test_where_no_disk_of_a_member_has_anything_those_that_are_not_there_yet_are_waited_for() -> None:
    """A member may have left the group just before all died, and its disk may have everything."""
    asked = revival("a")
    asked.record_reply(found("a.1", index=-1), 0.0)  # it is damaged
    asked.record_reply(found("d", term=1, index=20), 0.0)
    assert asked.result(["a.1", "d"], ("a",), 5.0, PATIENCE) is None
    asked.record_reply(found("b.1", term=2, index=30), 0.0)
    decided = asked.result(["a.1", "b.1", "d"], ("a",), 30.0, PATIENCE)
    assert decided is not None and decided.primary == "b.1"


def test_a_later_incarnation_is_more_recent_than_any_term_of_an_earlier_one() -> None:
    asked = revival("a", "b")
    asked.record_reply(found("a.1", life=2, term=2, index=1), 0.0)
    asked.record_reply(found("b.1", life=0, term=3, index=50), 0.0)
    decided = asked.result(["a.1", "b.1"], (), 0.1, PATIENCE)
    assert decided is not None and decided.primary == "a.1"


@pytest.mark.parametrize(
    ("ended", "term", "at", "is_decided"),
    [
        (("a", "b"), 3, 2.9, False),
        (("a", "b"), 3, 3.0, True),
        (("a", "b"), 2, 29.0, False),
        (("a", "b"), 2, 30.0, True),
        (("a",), 3, 1e6, False),
    ],
)
def test_a_disk_that_is_not_there_is_waited_for_and_a_member_that_may_live_for_ever(
    ended: tuple[str, ...], term: int, at: float, is_decided: bool
) -> None:
    asked = revival("a", "b")
    asked.record_reply(found("a.1", term=term), 0.0)
    decided = asked.result(["a.1"], ended, at, PATIENCE)
    assert (decided is not None) is is_decided


def test_nothing_is_decided_where_no_disk_has_anything() -> None:
    asked = revival("a")
    asked.record_reply(found("a.1", index=NO_INDEX), 0.0)
    assert asked.result(["a.1"], ("a",), 1000.0, PATIENCE) is None


@pytest.mark.parametrize(
    ("name", "disk", "after"),
    [
        ("server-3", "server-3", "server-3.1"),
        ("server-3.9", "server-3", "server-3.10"),
        ("a.b", "a.b", "a.b.1"),
    ],
)
def test_a_disk_is_named_after_its_first_server(name: str, disk: str, after: str) -> None:
    assert (disk_of(name), next_server_name(name)) == (disk, after)


# --- the ledger ---


def test_what_counted_and_is_lost_is_handed_out_again_and_counted_once() -> None:
    samples = SampleLedger(10)
    samples.assign(1, 6)
    samples.record_report(1, [(((0, 6),), ()), (((0, 6),), ())])
    assert samples.total.counted == 6 and samples.settled == ((0, 6),)
    assert samples.revoke({1: ((0, 4),)}) == ((4, 6),)
    total = samples.total
    assert (total.counted, total.lost, samples.free, samples.settled) == (4, 2, 6, ((0, 4),))
    assert samples.revoke({1: ((0, 4),)}) == ()
    assert samples.assign(2, 2) == (4, 6)


def test_what_disks_have_is_lost_no_more() -> None:
    samples = SampleLedger(10)
    samples.assign(1, 6)
    samples.record_report(1, [(((0, 6),), ())])
    samples.forget(((0, 4),))
    assert samples.revoke({}) == ((4, 6),)


def test_what_is_lost_of_an_epoch_that_is_over_is_handed_out_again_in_the_one_that_is_on() -> None:
    samples = SampleLedger(4)
    samples.assign(1, 4)
    samples.record_report(1, [(((0, 4),), ())])
    samples.next_epoch()
    assert samples.revoke({1: ((0, 3),)}) == ((3, 4),)
    assert (samples.accounts[0].left_out, samples.free) == (0, 5)
    assert samples.assign(2, 4) == (3, 4), "no range is of two epochs"
    assert samples.assign(2, 4) == (4, 8)
    samples.record_report(2, [(((3, 8),), ())])
    assert [vars(each)["counted"] for each in samples.accounts.values()] == [4, 4]
    assert samples.accounts[0].handed_out == 5 and samples.accounts[0].lost == 1
    again = SampleLedger.restored(4, samples.state())
    assert again.total == samples.total


def test_what_is_lost_after_the_last_epoch_is_handed_out_again() -> None:
    samples = SampleLedger(4)
    samples.assign(1, 4)
    samples.record_report(1, [(((0, 4),), ())])
    samples.stop()
    assert samples.revoke({1: ((0, 3),)}) == ((3, 4),)
    assert not samples.is_stopped and samples.assign(2, 9) == (3, 4)
    samples.stop()
    assert samples.assign(2, 9) is None


def test_what_a_server_lost_of_an_epoch_before_is_not_left_out_when_the_next_ends() -> None:
    samples = SampleLedger(4)
    samples.assign(1, 4)
    samples.record_report(1, [(((0, 4),), ())])
    samples.next_epoch()
    samples.revoke({1: ()})
    samples.next_epoch()
    assert [each.left_out for each in samples.accounts.values()] == [0, 4, 0]
    assert samples.assign(2, 4) == (0, 4)


def test_samples_of_a_session_that_ended_with_an_incarnation_are_free_in_any_epoch() -> None:
    samples = SampleLedger(10)
    samples.assign(1, 6)
    samples.stop()
    samples.end_session(1, [(((0, 4),), ()), (((0, 4),), ())], samples.open_of(1))
    total = samples.total
    assert (total.counted, total.lost, samples.free, samples.is_stopped) == (4, 2, 2, False)


def test_a_session_that_ends_with_an_incarnation_is_lost_and_not_torn() -> None:
    samples = SampleLedger(10)
    samples.assign(1, 6)
    samples.end_session(1, [(((0, 6),), ()), (((0, 4),), ())], samples.open_of(1))
    total = samples.total
    assert (total.counted, total.torn, total.lost, samples.free) == (4, 0, 2, 6)


def test_what_is_settled_waits_for_the_slowest_disk() -> None:
    saving = LedgerDurability(())
    saving.record_acknowledgement(1, ((0, 10),), [None, None])
    assert saving.settled == ((0, 10),) and not saving.is_pending
    saving.record_acknowledgement(2, ((0, 20),), [1, 2])
    saving.record_acknowledgement(3, ((0, 30),), [2, 3])
    assert (saving.settled, saving.state, saving.is_pending) == (((0, 20),), 2, True)
    saving.retain(((0, 25),))
    saving.record_acknowledgement(4, ((0, 40),), [4, 4])
    assert (saving.settled, saving.is_pending) == (((0, 40),), False)


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 1000))
def test_a_new_incarnation_is_later_and_counts_the_same_updates(now: int, then: int, lives: int) -> None:
    assert updates_between(version_after_restarts(now, lives), version_after_restarts(then, 0)) == max(
        0, now - then
    )
    assert (
        version_after_restarts(now, lives + 1) > version_after_restarts(then, lives)
    ) and version_after_restarts(now, 0) == now


def house_that_saves(names: str) -> ReplicaGroup:
    return ReplicaGroup(names, ReplicationSettings(saves=True))


def put_on_disk(servers: ReplicaGroup, name: str) -> SavedBucket:
    """Save all changes of the bucket; return them."""
    number, saved = servers.of[name].save(BUCKET)
    servers.of[name].saved(number)
    return saved


def asked_what_it_has(servers: ReplicaGroup, name: str, disk: SavedBucket | None = None) -> DiskStateReply:
    """Return the reply of a server with this disk to a controller."""
    keeper = servers.of[name]
    keeper.receive("controller", DiskStateRequest(1, BUCKET), servers.now)
    for bucket in keeper.take_reads():
        keeper.on_read(bucket, disk)
    (found,) = keeper.receive("controller", DiskStateRequest(1, BUCKET), servers.now)
    assert isinstance(found.message, DiskStateReply)
    return found.message


def test_a_learner_that_was_waited_for_has_everything_in_memory_when_all_members_are_gone() -> None:
    servers = house_that_saves("ac")
    servers.begin(Group(BUCKET, 1, "a"))
    servers.assign(Group(BUCKET, 2, "a", (), ("c",)))
    servers.settle()
    servers.ask("a", "client", push(1, 1.0, 2.0, 3.0, 4.0))
    servers.drain("a")
    assert said(servers.carry(), Applied), "with what the learner has"
    found = asked_what_it_has(servers, "c", None)
    assert (found.term, found.index) == (2, servers.of["a"].copies[BUCKET].index)
    servers.tell("c", "controller", Assign(1, Group(BUCKET, 3, "c", incarnation=3)))
    servers.lease("c")
    copy = servers.of["c"].copies[BUCKET]
    assert copy.role is ReplicaRole.PRIMARY and servers.weights("c") == [[1.0, 2.0], [3.0, 4.0]]
    assert dict(copy.restored).keys() == {0, 1}, "the coordinator is told with which versions it began"
    assert servers.of["c"].dirty == [BUCKET], "its disk has nothing of that"


def test_a_primary_that_was_has_more_than_nothing_when_the_next_is_gone_for_good() -> None:
    servers = house_that_saves("a")
    servers.begin(Group(BUCKET, 1, "a"))
    servers.ask("a", "client", push(1, 1.0, 2.0, 3.0, 4.0))
    servers.drain("a")
    found = asked_what_it_has(servers, "a", None)
    assert (found.incarnation, found.term, found.index) == (0, 1, servers.of["a"].copies[BUCKET].index)


def test_a_learner_that_lacks_something_has_less_than_the_disk_of_any_member() -> None:
    servers = house_that_saves("abc")
    servers.begin(Group(BUCKET, 1, "a", ("b",)))
    servers.assign(Group(BUCKET, 2, "a", ("b",), ("c",)))
    servers.settle()
    for number in (1, 2, 3):
        servers.ask("a", "client", push(number, 1.0, 1.0, 1.0, 1.0))
        servers.drain("a")
        servers.carry(lost="c")
    disk = put_on_disk(servers, "a")
    assert put_on_disk(servers, "c").index < disk.index
    servers.assign(Group(BUCKET, 3, "a", (), ("c",)), "ca")
    servers.waiting.clear()
    learner = servers.of["c"].copies[BUCKET]
    assert learner.role is ReplicaRole.LEARNER and learner.recency < disk.recency
    number, saved = servers.of["c"].save(BUCKET)
    assert saved.recency < disk.recency


def test_what_a_disk_has_is_known_through_groups_that_do_not_name_its_server() -> None:
    servers = house_that_saves("ax")
    servers.begin(Group(BUCKET, 1, "a"))
    disk = put_on_disk(servers, "a")
    assert asked_what_it_has(servers, "x", disk).index == disk.index
    servers.tell("x", "controller", Assign(1, Group(BUCKET, 2, "a")))  # late
    servers.tell("x", "controller", Assign(1, Group(BUCKET, 3, "x", incarnation=3)))
    assert servers.of["x"].copies[BUCKET].role is ReplicaRole.PRIMARY
    servers.tell("x", "controller", Assign(1, Group(BUCKET, 4, "y", incarnation=4)))
    assert servers.of["x"].copies[BUCKET].durability.found_state is None, "another life has begun elsewhere"


def test_a_primary_that_has_nothing_says_that_it_cannot_lead() -> None:
    servers = house_that_saves("x")
    servers.tell("x", "controller", Assign(1, Group(BUCKET, 4, "x", incarnation=4)))
    keeper = servers.of["x"]
    assert keeper.copies[BUCKET].role is ReplicaRole.OUTSIDE and keeper.leads == ()
    servers.now += 1.0
    (here,) = [each.message for each in keeper.tick(servers.now) if isinstance(each.message, Heartbeat)]
    assert here.fenced == ((BUCKET, 5),), "so an election is held"


def test_a_disk_that_is_read_late_begins_no_incarnation_again() -> None:
    servers = house_that_saves("a")
    servers.begin(Group(BUCKET, 1, "a"))
    disk = put_on_disk(servers, "a")
    keeper = servers.of["a"]
    servers.assign(Group(BUCKET, 2, "a", incarnation=2))
    servers.ask("a", COORDINATOR, CoordinatorState(2, ((1, "client"),), ((1, 1.0),), 0, 0))
    index = keeper.copies[BUCKET].index
    keeper.on_read(BUCKET, disk)
    servers.assign(Group(BUCKET, 3, "a", incarnation=2))
    assert keeper.copies[BUCKET].index >= index


def test_a_disk_that_had_more_a_moment_ago_is_waited_for_though_its_process_has_died_again() -> None:
    asked = revival("a")
    asked.record_reply(found("a.1", index=-1), 1.0)
    asked.record_reply(found("e.1", term=2, index=23), 20.0)
    asked.record_reply(found("b.1", term=1, index=6), 31.0)
    assert asked.result(["a.1", "b.1"], ("a", "e.1"), 31.0, PATIENCE) is None
    decided = asked.result(["a.1", "b.1"], ("a", "e.1"), 50.5, PATIENCE)
    assert decided is not None and decided.primary == "b.1", "it does not come any more"
    asked.record_reply(found("e.2", term=2, index=23), 50.6)
    decided = asked.result(["a.1", "b.1", "e.2"], ("a", "e.1"), 50.6, PATIENCE)
    assert decided is not None and decided.primary == "e.2"


def test_where_every_disk_was_heard_of_nobody_is_waited_for() -> None:
    asked = revival("a")
    known = ["a", "a.1", "b", "e", "e.1"]
    asked.record_reply(found("a.1", index=-1), 1.0)
    asked.record_reply(found("b", term=1, index=6), 1.0)
    assert asked.result(["a.1", "b"], (), 1.0, PATIENCE, known) is None, "that of e may have more"
    asked.record_reply(found("e", term=2, index=23), 2.0)
    assert asked.result(["a.1", "b"], (), 2.0, PATIENCE, known) is None, "it has, and is away again"
    asked.record_reply(found("e.1", term=2, index=23), 3.0)
    decided = asked.result(["a.1", "b", "e.1"], (), 3.0, PATIENCE, known)
    assert decided is not None and decided.primary == "e.1"


def test_what_a_disk_has_refused_is_in_what_it_takes_next() -> None:
    servers = house_that_saves("a")
    servers.begin(Group(BUCKET, 1, "a"))
    put_on_disk(servers, "a")
    keeper = servers.of["a"]
    servers.ask("a", "client", push(1, 1.0, 2.0, 3.0, 4.0))
    servers.drain("a")
    refused, _ = keeper.save(BUCKET)
    servers.ask("a", COORDINATOR, CoordinatorState(2, ((1, "client"),), ((1, 1.0),), 0, 0))
    taken, second = keeper.save(BUCKET)
    keeper.unsaved(refused)
    keeper.saved(taken)
    assert set(second.numbers) == {("weights", 0), ("weights", 1)}
