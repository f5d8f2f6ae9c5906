"""Controllers, one message after the other: what the tables in `replication.controller` say."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from tests.support.replication.fake_controller import (
    BUCKET,
    PATIENCE,
    WHAT,
    Cluster,
    ControllerHarness,
    State,
)

from cotswold.replication.controller.bucket_map import items_of
from cotswold.replication.controller.cluster_view import ClusterView
from cotswold.replication.controller.controller import Controller
from cotswold.replication.controller.drain import DrainManager
from cotswold.replication.controller.election import Election, ElectionManager
from cotswold.replication.controller.event_text import waiting_event
from cotswold.replication.controller.leader_election import LeaderElection, LeadershipState, Read, Transact
from cotswold.replication.controller.replication_repair import RemovalCheck, ReplicationRepair
from cotswold.replication.controller.server_registry import ServerRegistry
from cotswold.replication.controller.settings import ControllerSettings
from cotswold.replication.replica.saved_bucket import disk_of, restored_on
from cotswold.wire import (
    Assign,
    Create,
    DiskStateReply,
    DiskStateRequest,
    Drain,
    DrainStatus,
    Fence,
    FenceReply,
    Group,
    Heartbeat,
    LearnerCaughtUp,
    LeaseGrant,
    LookupReply,
    LookupRequest,
    NotLeader,
    PeerUnreachable,
    PrimaryUnreachable,
    RunDescription,
    RunDescriptionRequest,
    ServerExited,
    StatusReply,
    StatusRequest,
)


def test_whoever_is_silent_and_has_nothing_is_not_shown_once_another_goes_on_from_its_disk() -> None:
    harness = ControllerHarness()
    harness.pass_time(1.0, ("a", "b", "c"))
    harness.pass_time(5.0, "bc")
    assert shown(harness) == ["a", "b", "c"]
    harness.pass_time(1.0, ("a.1", "b", "c"))
    assert shown(harness) == ["a.1", "b", "c"]


def shown(harness: ControllerHarness) -> list[str]:
    """The servers that people see."""
    harness.tell("person", StatusRequest())
    (looked,) = [each.message for each in harness.take(StatusReply)]
    assert isinstance(looked, StatusReply)
    return [each.name for each in looked.servers]


def test_buckets_are_dealt_evenly_and_copies_are_on_different_hosts() -> None:
    harness = ControllerHarness()
    harness.pass_time(1.0, "abcd")
    for name in ("a2", "b2"):
        harness.beat(name)
    buckets = tuple(f"bucket {number}" for number in range(12))
    assert not harness.controller.create(Create("run", WHAT, buckets, 7), harness.now), (
        "there are six servers"
    )
    assert harness.controller.create(Create("run", WHAT, buckets, 6), harness.now)
    harness.pass_time(0.2, "abcd")
    groups = harness.controller.groups.values()
    assert len(groups) == 12 and all(len({name[0] for name in each.members}) == 3 for each in groups)
    primaries = [each.primary for each in groups]
    assert max(primaries.count(name) for name in set(primaries)) <= 3
    copies = [name for each in groups for name in each.members]
    assert (
        max(copies.count(name) for name in set(copies)) - min(copies.count(name) for name in set(copies)) <= 6
    )


def test_what_servers_must_know_of_a_run_is_written_down_and_told_by_whoever_leads() -> None:
    harness = ControllerHarness()
    harness.create("abc")
    assert [key for key in harness.state.items if key.startswith("run/")] == ["run/run/0", "run/run/1"]
    for _ in range(2):
        assert [each.message for each in harness.tell("a", RunDescriptionRequest("run"))] == [
            RunDescription("run", WHAT)
        ]
        asked = [StatusRequest("", 7), LookupRequest((), number=8), RunDescriptionRequest("run", 9)]
        told = [each.message for question in asked for each in harness.tell("operator", question)]
        assert [
            each.number for each in told if isinstance(each, StatusReply | LookupReply | RunDescription)
        ] == [7, 8, 9]
        assert [each.message for each in harness.tell("a", RunDescriptionRequest("other"))] == [
            RunDescription("other", "")
        ]
        harness.controller = Controller(
            "d", ControllerSettings(), harness.now, "d"
        )  # another, that leads next
        harness.pass_time(3.0, "abc")


def test_a_lease_is_given_to_whoever_claims_nothing_that_is_anothers() -> None:
    harness = ControllerHarness()
    harness.create("abc")
    primary = harness.group.primary
    (send,) = [each for each in harness.beat(primary) if isinstance(each.message, LeaseGrant)]
    assert send.to == primary
    other = harness.group.secondaries[0]
    answers = [each.message for each in harness.beat(other, leads=((BUCKET, 1),))]
    assert not any(isinstance(each, LeaseGrant) for each in answers)
    assert any(isinstance(each, Assign) and each.group == harness.group for each in answers)


def test_the_death_of_a_primary_that_a_supervisor_sees_begins_an_election_at_once() -> None:
    harness = ControllerHarness()
    harness.create("abc")
    before = harness.group
    harness.tell("supervisor", ServerExited(before.primary, "was killed by SIGKILL"))
    fences = harness.take(Fence)
    assert sorted(each.to for each in fences) == sorted(before.secondaries)
    one, other = before.secondaries
    harness.tell(one, FenceReply(BUCKET, 2, one, 1, 7))
    assert harness.group == before, "one has not answered yet"
    harness.tell(other, FenceReply(BUCKET, 2, other, 1, 9))
    harness.pass_time(0.1, one + other)
    assert harness.group == Group(BUCKET, 2, other, (one,)), "the longest"


def test_a_silent_primary_keeps_its_place_until_no_lease_of_it_can_hold() -> None:
    harness = ControllerHarness()
    harness.create("abc")
    before = harness.group
    others = "".join(before.secondaries)
    harness.pass_time(0.9, others)
    assert harness.take(Fence) == [] and harness.group == before
    harness.pass_time(0.3, others)
    assert harness.take(Fence) != []
    for name in others:
        harness.tell(name, FenceReply(BUCKET, 2, name, 1, 7))
    harness.pass_time(0.1, others)
    assert harness.group.term == 2 and harness.group.primary in others
    assert any("took over" in each.sentence for each in harness.controller.take_events())


def test_a_primary_that_hears_no_controller_is_followed_though_it_is_heard() -> None:
    harness = ControllerHarness(control=ControllerSettings(replication_factor=2))
    harness.create("ab")
    primary, (other,) = harness.group.primary, harness.group.secondaries
    began = harness.now

    def beat(answered: int) -> float:
        """The seconds of the lease that it is given."""
        claims = ((BUCKET, 1),) if harness.group.primary == primary else ()
        said = harness.tell(primary, Heartbeat(primary, "host", "at it", 1, claims, answered=answered))
        return sum(each.message.seconds for each in said if isinstance(each.message, LeaseGrant))

    assert beat(10_000) == 1.0
    while harness.group.primary == primary and harness.now - began < 5:
        harness.pass_time(0.1, other + "c")  # others have leases that are over before and after its own
        for each in harness.take(Fence):
            harness.tell(other, FenceReply(BUCKET, 2, other, 1, 7))
            assert each.to == other, "the primary hears none"
        lease = beat(10_000)
        assert lease <= max(0.0, began + 1.5 - harness.now) + 1e-9, "no longer than it may have already"
    assert harness.group.primary == other and harness.now - began < 1.8
    assert any("but sends heartbeats" in each.sentence for each in harness.controller.take_events())
    harness.pass_time(0.5, other)
    assert not harness.controller.servers.is_alive(primary) and beat(10_000) == 0.0
    assert beat(10_001) == 1.0 and harness.controller.servers.is_alive(primary), "it hears controllers again"


def test_a_lost_answer_or_two_cost_no_lease() -> None:
    harness = ControllerHarness(control=ControllerSettings(replication_factor=2))
    harness.create("ab")
    primary = harness.group.primary
    for answered in (1, 1, 1, 1, 2, 2, 2, 3):
        harness.pass_time(0.1, harness.group.secondaries)
        harness.tell(
            primary, Heartbeat(primary, "host", "at it", 1, ((BUCKET, 1),), answered=10_000 + answered)
        )
        (lease,) = harness.take(LeaseGrant)[-1:]
        assert isinstance(lease.message, LeaseGrant) and lease.message.seconds == 1.0


def test_an_election_does_without_whoever_says_nothing_and_never_with_nothing() -> None:
    group = Group(BUCKET, 1, "a", ("b", "c"))
    election = Election(group, 10.0)
    assert election.result(["b", "c"], False, 20.0, PATIENCE) is None, "nobody has answered"
    election.record_reply(FenceReply(BUCKET, 2, "b", 1, -1))
    assert election.result(["b", "c"], False, 20.0, PATIENCE) is None, "b has nothing"
    election.record_reply(FenceReply(BUCKET, 3, "c", 1, 9))
    assert "c" not in election.answers, "of another term"
    election.record_reply(FenceReply(BUCKET, 2, "c", 1, 4))
    assert election.result(["b", "c"], True, 20.0, PATIENCE) is None, "the primary may act"
    assert election.result(["b", "c"], False, 20.0, PATIENCE) == Group(BUCKET, 2, "c", ())


def test_a_learner_that_has_caught_up_is_a_secondary_in_the_next_term() -> None:
    harness = ControllerHarness()
    harness.create("ab")
    harness.pass_time(0.3, "abd")
    assert harness.group.learners == ("d",) and harness.group.term == 2
    primary = harness.group.primary
    harness.tell(primary, LearnerCaughtUp(BUCKET, 1, primary, "d"))  # of a term that is over
    harness.tell("d", LearnerCaughtUp(BUCKET, 2, "d", "d"))  # not the primary
    harness.pass_time(0.1, "abd")
    assert harness.group.term == 2
    harness.tell(primary, LearnerCaughtUp(BUCKET, 2, primary, "d"))
    harness.pass_time(0.1, "abd")
    assert harness.group.term == 3 and "d" in harness.group.secondaries and not harness.group.learners


def test_a_copy_that_its_primary_does_not_hear_is_taken_out_and_replaced_by_another() -> None:
    harness = ControllerHarness()
    harness.create("abcd")
    primary, (silent, _) = harness.group.primary, harness.group.secondaries
    harness.tell(primary, PeerUnreachable(BUCKET, 1, primary, silent))
    harness.pass_time(0.3, "abcd")
    assert silent in harness.group.all_servers, "nobody else has said that it is there"
    harness.assure()
    harness.pass_time(0.2, "abcd")
    assert silent not in harness.group.all_servers and len(harness.group.all_servers) == 3


def test_a_primary_that_hears_one_secondary_after_the_other_no_more_is_to_blame() -> None:
    cluster = Cluster("abc", ControllerSettings(replication_factor=3))
    group = cluster.group_of("run/0000")
    primary, (first, other) = group.primary, group.secondaries
    cluster.learns = False
    cluster.tell(primary, PeerUnreachable("run/0000", 1, primary, first))
    cluster.live(0.6)
    group = cluster.group_of("run/0000")
    assert group.primary == primary and group.secondaries == (other,), "it was believed"
    cluster.tell(primary, PeerUnreachable("run/0000", group.term, primary, other))
    cluster.live(1.0)
    assert cluster.group_of("run/0000").primary == other


def test_nobody_is_left_out_on_the_word_of_a_primary_that_has_died_since() -> None:
    harness = ControllerHarness(control=ControllerSettings(replication_factor=2))
    harness.create("ab")
    primary, (silent,) = harness.group.primary, harness.group.secondaries
    harness.tell(
        primary, PeerUnreachable(BUCKET, 1, primary, silent)
    )  # and then its host dies, of which nobody tells
    harness.pass_time(1.5, silent)
    for each in harness.take(Fence):
        harness.tell(each.to, FenceReply(BUCKET, 2, each.to, 1, 7))
    harness.pass_time(0.1, silent)
    assert harness.group.members == (silent,), "it has all that was acknowledged"


@pytest.mark.parametrize(("names", "copies", "least"), [("ab", 2, 1), ("ab", 2, 2), ("abc", 3, 3)])
def test_a_moment_of_silence_stops_no_bucket_that_can_have_no_other_server(
    names: str, copies: int, least: int
) -> None:
    harness = ControllerHarness(
        control=ControllerSettings(replication_factor=copies, replication_factor_min=least)
    )
    harness.create(names)
    primary, silent = harness.group.primary, harness.group.secondaries[0]
    harness.tell(primary, PeerUnreachable(BUCKET, 1, primary, silent))
    for _ in range(8):
        harness.pass_time(0.05, names)
        harness.assure()
    assert silent not in harness.group.all_servers
    harness.pass_time(2.5, names)
    assert silent in harness.group.learners


def test_a_member_that_had_not_heard_yet_that_it_is_one_is_asked_again() -> None:
    harness = ControllerHarness(control=ControllerSettings(replication_factor=2))
    harness.create("ab")
    primary, (other,) = harness.group.primary, harness.group.secondaries
    harness.tell("supervisor", ServerExited(primary, "killed"))
    assert harness.take(Fence)
    harness.tell(other, FenceReply(BUCKET, 2, other, 0, -1))
    harness.pass_time(0.3, other)
    assert harness.group.term == 1
    fences = harness.take(Fence)
    assert len(fences) > 1 and {each.to for each in fences} == {other}
    harness.tell(other, FenceReply(BUCKET, 2, other, 1, 0))
    harness.pass_time(0.1, other)
    assert harness.group.members == (other,)


def test_disks_are_asked_where_a_member_lives_and_has_nothing() -> None:
    harness = ControllerHarness(control=ControllerSettings(replication_factor=2))
    harness.create("ab")
    primary, (other,) = harness.group.primary, harness.group.secondaries
    harness.tell("supervisor", ServerExited(primary, "killed"))
    for _ in range(80):
        for each in harness.take(Fence):
            harness.tell(each.to, FenceReply(BUCKET, 2, each.to, 1, -1))
        harness.pass_time(0.05, other)
    assert {each.to for each in harness.take(DiskStateRequest)} == {other}
    harness.tell(other, DiskStateReply(BUCKET, other, 0, 0, -1))
    harness.pass_time(1.5, other)
    assert harness.take(DiskStateRequest), "what it has may come yet"
    harness.tell(other, DiskStateReply(BUCKET, other, 0, 1, 5))
    harness.pass_time(31.0, other)
    assert harness.group == Group(BUCKET, 2, other, incarnation=2)


def test_a_fence_that_is_lost_costs_no_copy() -> None:
    harness = ControllerHarness(control=ControllerSettings(replication_factor=3))
    harness.create("abc")
    primary, (one, other) = harness.group.primary, harness.group.secondaries
    harness.tell("supervisor", ServerExited(primary, "killed"))
    harness.take(Fence)  # that to the other is lost
    harness.tell(one, FenceReply(BUCKET, 2, one, 1, 9))
    harness.pass_time(0.1, (one, other))
    assert {each.to for each in harness.take(Fence)} == {other}
    harness.pass_time(0.5, (one, other))
    assert harness.group.term == 1, "one alone would be left of two that live"
    harness.tell(other, FenceReply(BUCKET, 2, other, 1, 8))
    harness.pass_time(0.1, (one, other))
    assert harness.group.members == (one, other)


def test_a_primary_that_wakes_up_gets_no_lease_while_the_next_is_written_down() -> None:
    harness = ControllerHarness(control=ControllerSettings(replication_factor=3))
    harness.create("abc")
    primary, others = harness.group.primary, harness.group.secondaries
    harness.pass_time(1.2, others)  # it stands still
    harness.take(Fence)
    for name in others:
        harness.tell(name, FenceReply(BUCKET, 2, name, 1, 9))
    while (wish := harness.controller.next_request(harness.now)) is not None:
        if isinstance(wish, Transact) and any(key.startswith("bucket/") for key, _ in wish.put):
            break
        harness.answered(wish)
    assert wish is not None, "who is elected is on its way"
    told = harness.tell(primary, Heartbeat(primary, f"host {primary}", f"at {primary}", 1, ((BUCKET, 1),)))
    assert not any(isinstance(each.message, LeaseGrant) and each.message.seconds for each in told)
    harness.sent += harness.answered(wish)
    assert harness.group.primary in others
    told = harness.beat(primary)
    assert any(isinstance(each.message, LeaseGrant) for each in told), "it leads nothing any more"


def test_an_election_is_not_over_with_another_group_of_its_term() -> None:
    harness = ControllerHarness(control=ControllerSettings(replication_factor=2))
    harness.create("abc")
    primary, (ended,) = harness.group.primary, harness.group.secondaries
    harness.controller.take_events()
    harness.tell("supervisor", ServerExited(ended, "killed"))
    harness.now += 0.05
    harness.sent += harness.controller.tick(harness.now)
    while (wish := harness.controller.next_request(harness.now)) is not None:
        if isinstance(wish, Transact) and any(key.startswith("bucket/") for key, _ in wish.put):
            break
        harness.answered(wish)
    assert wish is not None, "the group without it is on its way"
    harness.tell("supervisor", ServerExited(primary, "killed"))
    harness.answered(wish)
    sentences = [each.sentence for each in harness.controller.take_events()]
    assert not any("remains its primary" in each for each in sentences), sentences
    harness.pass_time(0.1, "abc")
    assert BUCKET in harness.controller._state.elections.of, "nobody is there who has anything"


def test_a_primary_that_all_its_secondaries_do_not_hear_is_fenced_though_it_lives() -> None:
    harness = ControllerHarness()
    harness.create("abc")
    primary, secondaries = harness.group.primary, harness.group.secondaries
    for name in secondaries:
        harness.tell(name, PrimaryUnreachable(BUCKET, 1, name, primary))
    harness.pass_time(0.3, "abc")
    assert {each.to for each in harness.take(Fence)} == {"a", "b", "c"}
    harness.take(LeaseGrant)
    harness.beat(primary)
    assert not any(each.to == primary for each in harness.take(LeaseGrant)), "no lease before it has answered"
    for name in (*secondaries, primary):
        harness.tell(name, FenceReply(BUCKET, 2, name, 1, 5 if name == primary else 4))
    harness.pass_time(0.1, "abc")
    assert harness.group.primary in secondaries and primary not in harness.group.members


def test_only_one_of_two_controllers_leads_and_a_standby_reads_what_was_written() -> None:
    state = State()
    one, other = ControllerHarness(state), ControllerHarness(state, "other")
    one.create("abc")
    other.pass_time(0.9)
    assert one.controller.leads(one.now) and not other.controller.leads(other.now)
    other.pass_time(2.0)  # the first says nothing meanwhile
    assert other.controller.leads(other.now) and other.controller.groups == one.controller.groups
    assert other.controller.election.epoch == one.controller.election.epoch + 1
    one.now += 2.0
    assert not one.controller.leads(one.now), "before it has heard of the other"
    (told,) = one.tell("client", LookupRequest(()))
    assert isinstance(told.message, NotLeader)
    one.pass_time(0.6)
    assert one.controller.election.state is LeadershipState.FOLLOWING
    found = [each.message for each in other.tell("client", LookupRequest(()))]
    assert isinstance(found[0], LookupReply) and found[0].groups == (other.group,)


def test_what_a_leader_that_was_wants_written_is_not() -> None:
    state = State()
    one, other = ControllerHarness(state), ControllerHarness(state, "other")
    one.create("abc")
    before = dict(state.items)
    other.pass_time(3.0)
    one.controller._state.view.propose(Group(BUCKET, 2, "b"))
    wanted = one.controller._state.view.map.transaction(one.controller.election.key)
    assert wanted is not None and not state.do(wanted)
    assert state.items["bucket/" + BUCKET] == before["bucket/" + BUCKET]


def test_a_new_leader_gives_servers_that_it_has_not_heard_as_long_as_a_lease() -> None:
    state = State()
    one, other = ControllerHarness(state), ControllerHarness(state, "other")
    one.create("abc")
    while not other.controller.leads(other.now):
        other.pass_time(0.05)
    other.pass_time(0.9, "bc".replace(one.group.primary, ""))
    assert other.take(Fence) == []


def test_a_beat_of_which_nobody_knows_the_outcome_does_not_extend_a_leadership() -> None:
    leading = LeaderElection("one", 0.0, token="word", beat_seconds=0.25, leader_seconds=1.0)
    assert leading.next_request(0.25) == Read("leader")
    leading.read({}, 0.25)
    claim = leading.next_request(0.5)
    assert isinstance(claim, Transact) and leading.on_transaction(True, 0.5)
    assert isinstance(leading.next_request(1.0), Transact)
    leading.on_transaction(None, 1.1)
    assert leading.leads(1.4) and not leading.leads(1.5)
    leading.next_request(1.3)
    leading.on_transaction(True, 1.35)
    assert leading.leads(2.2)
    leading.next_request(1.6)
    leading.on_transaction(False, 1.7)
    assert not leading.leads(1.7) and leading.state is LeadershipState.FOLLOWING


def stand_still(harness: ControllerHarness, seconds: float) -> None:
    """Neither time nor messages reach the controller, nor does the state answer it."""
    harness.now += seconds


def test_silence_while_the_leader_stood_still_is_nobodys() -> None:
    harness = ControllerHarness()
    harness.create("abc")
    before, primary = harness.group, harness.group.primary
    stand_still(harness, 2.5)
    harness.pass_time(0.5)  # it leads again when its beat is in, and hears them afterwards
    assert not [each for each in harness.controller.take_events() if each.kind == "lost"]
    harness.pass_time(1.0, "abc")
    assert harness.group == before and harness.controller.servers.is_alive(primary)


def test_whoever_is_silent_after_the_leader_stood_still_is_gone_a_lease_later() -> None:
    harness = ControllerHarness()
    harness.create("abc")
    primary = harness.group.primary
    stand_still(harness, 2.5)
    harness.pass_time(1.5, "abc".replace(primary, ""))
    assert not harness.controller.servers.is_alive(primary)


def test_a_primary_that_another_leader_gives_its_first_lease_late_keeps_its_place() -> None:
    harness = ControllerHarness()
    harness.create("abc")
    before = harness.group
    others = "".join(before.secondaries)
    harness.controller = Controller("d", ControllerSettings(), harness.now, "d")
    while not harness.controller.leads(harness.now):
        harness.pass_time(0.05)
    harness.pass_time(0.85, others)  # the primary says first what it leads, or its beats are on their way
    for _ in range(2):
        harness.pass_time(0.1, "abc")
        for name in others:
            harness.tell(name, PrimaryUnreachable(BUCKET, before.term, name, before.primary))
    harness.pass_time(0.5, "abc")
    assert harness.group == before and not harness.take(Fence)


def test_complaints_about_a_time_without_leases_are_not_heard() -> None:
    harness = ControllerHarness()
    harness.create("abc")
    before = harness.group
    stand_still(harness, 2.5)
    for _ in range(2):
        harness.pass_time(0.2, "abc")
        for name in before.secondaries:
            harness.tell(name, PrimaryUnreachable(BUCKET, before.term, name, before.primary))
    harness.pass_time(0.5, "abc")
    assert harness.group == before and not harness.take(Fence)
    for name in before.secondaries:
        harness.tell(name, PrimaryUnreachable(BUCKET, before.term, name, before.primary))
    harness.pass_time(0.3, "abc")
    assert harness.take(Fence), "now they are"


def test_servers_are_gone_when_no_lease_can_hold_and_whoever_ended_stays_so() -> None:
    servers = ServerRegistry()
    servers.record_heartbeat(Heartbeat("a", "host a", "at a", 1, ()), 4.0).lease_until = 5.0
    assert servers.take_expired(5.0) == [] and servers.may_act("a", 5.0)
    assert [each.name for each in servers.take_expired(5.1)] == ["a"] and servers.take_expired(5.2) == []
    servers.record_heartbeat(Heartbeat("a", "host a", "at a", 1, ()), 4.0)
    assert servers.is_alive("a") and servers.record_exit("a") and not servers.record_exit("a")
    servers.record_heartbeat(Heartbeat("a", "host a", "at a", 1, ()), 4.0)
    assert not servers.is_alive("a") and not servers.may_act("a", 0.0)


def test_a_bucket_has_one_to_five_copies() -> None:
    for copies in (0, 6):
        with pytest.raises(ValueError, match="1 to 5"):
            ControllerSettings(replication_factor=copies)


def restored(
    harness: ControllerHarness, seconds: float, there: Sequence[str], having: str = "a"
) -> list[str]:
    """What people are told meanwhile; whoever is asked what a disk has says so: ``having`` has something."""
    said = []
    for _ in range(round(seconds / 0.05)):
        harness.pass_time(0.05, there)
        for each in harness.take(DiskStateRequest):
            has = disk_of(each.to) == having
            harness.tell(each.to, DiskStateReply(BUCKET, each.to, 0, 5 if has else 0, 9 if has else -1))
        said += [each.sentence for each in harness.controller.take_events()]
    return said


def begun_with_a_backup() -> ControllerHarness:
    """A cluster in which a bucket was restored on the disk of a server a."""
    state = State()
    for items in items_of({"run": WHAT}, [Group(BUCKET, 5, restored_on("a"))]):
        state.items |= {key: value for key, value in items if value is not None}
    return ControllerHarness(state)


def test_what_was_restored_is_begun_with_and_nothing_is_called_lost_or_silent() -> None:
    harness = begun_with_a_backup()
    said = restored(harness, 40.0, ["b"])
    assert [each for each in said if "restored" in each] == [
        f"{BUCKET}: it was restored, and a is not available yet: start the host with that folder"
    ]
    said += restored(harness, 4.0, ["a.1", "b"])
    assert harness.group.primary == "a.1" and harness.group.incarnation
    assert f"{BUCKET}: restored; a.1 starts from its disk, term 1005" in " ".join(said)
    assert not any(each in " ".join(said) for each in ("lost", "sent no heartbeat", "copies were", "ended"))
    harness.tell("operator", StatusRequest())
    (looked,) = [each.message for each in harness.take(StatusReply)]
    assert isinstance(looked, StatusReply) and [each.name for each in looked.servers] == ["a.1", "b"]


def test_a_restored_disk_that_is_there_and_has_nothing_is_told_from_one_that_is_not_there() -> None:
    empty = "a is available and has no such data: restore again into an empty folder, or delete the run"
    for before in (0.0, 40.0):
        harness = begun_with_a_backup()
        said = [restored(harness, before, ["b"], having=""), restored(harness, 80.0, ["a", "b"], having="")]
        first, second = ([each for each in sentences if "restored" in each] for sentences in said)
        assert len(first) == bool(before) and all("a is not available yet" in each for each in first)
        (told,) = second
        assert told.startswith(f"{BUCKET}: it was restored, but {empty}")
    change = waiting_event(Group("c83a/0003", 5, restored_on("a")), [], is_empty=True)
    assert change.sentence.endswith("`cotswold cluster remove c83a`")


def test_one_of_anything_is_one_in_sentences() -> None:
    harness = Cluster("ab", ControllerSettings(replication_factor=2))
    assert [each.sentence for each in harness.controller.take_events() if each.kind == "created"] == [
        "run has 1 bucket"
    ]
    harness.there = {"b": None} if harness.controller.groups["run/0000"].primary == "a" else {"a": None}
    harness.live(3.0)
    left = next(iter(harness.there))
    harness.tell("operator", Drain(left, 5.0))
    (answer,) = [each.message for each in harness.take(DrainStatus)]
    assert isinstance(answer, DrainStatus) and answer.left == 1 and "1 copies" not in answer.why
    told = " ".join(each.sentence for each in harness.controller.take_events())
    assert re.search(r"missed ([2-9]|\d\d) heartbeats|missed 1 heartbeat;", told), told


def test_one_copy_that_is_left_and_one_bucket_more_are_one() -> None:
    view = ClusterView(ControllerSettings(replication_factor=1), 0.0)
    drains = DrainManager(view, ReplicationRepair(view, ElectionManager(view, 1), RemovalCheck(1)), 0.0)
    view.load(
        {key: value for items in items_of({}, [Group("run/0000", 1, "a")]) for key, value in items if value}
    )
    assert drains.progress("a", 1.0).why == "a has 1 copy"


def test_keys_of_servers_are_written_down_before_groups_and_deleted_with_what_is_known_of_them() -> None:
    harness = ControllerHarness(control=ControllerSettings(replication_factor=1, forget_seconds=20.0))
    harness.pass_time(1.0)
    for name in "ab":
        harness.tell(name, Heartbeat(name, f"host {name}", f"at {name}", 1, (), key=f"digest of {name}"))
    assert harness.controller.create(Create("run", "what it is", (BUCKET,), 2), harness.now)
    first = harness.controller.next_request(harness.now)
    assert isinstance(first, Transact)
    assert dict(first.put) == {"server/a": "digest of a", "server/b": "digest of b"}
    harness.sent += harness.answered(first)
    harness.answer()
    other = next(name for name in "ab" if name != harness.group.primary)
    standby = ControllerHarness(
        harness.state, "two", control=ControllerSettings(replication_factor=1, forget_seconds=20.0)
    )
    standby.pass_time(2.0)
    assert standby.controller.keys == {name: f"digest of {name}" for name in "ab"}
    standby.pass_time(35.0)
    assert standby.controller.keys == {harness.group.primary: f"digest of {harness.group.primary}"}
    assert f"server/{other}" not in standby.state.items


def test_nothing_is_kept_of_a_server_that_is_forgotten() -> None:
    cluster = Cluster("abcd", ControllerSettings(replication_factor=3, forget_seconds=20.0), buckets=4)
    cluster.tell("c", Heartbeat("c", "host c", "at c", 1, (), runs=("gone",), answered=cluster.beats))
    del cluster.there["c"]  # its host is lost: nobody sees its process end
    cluster.live(3.0)
    for _ in range(3):
        for group in list(cluster.controller.groups.values()):
            if "c" in group.all_servers:
                cluster.tell(group.primary, PeerUnreachable(group.bucket, group.term, group.primary, "c"))
        cluster.live(1.0)
    state = cluster.controller._state
    assert state._delivery._absent["c"], "it would be told of them if it came back"
    cluster.live(40.0)
    assert "c" not in cluster.controller.servers.of
    assert not state._delivery._absent and not state._deletions._sent_at
