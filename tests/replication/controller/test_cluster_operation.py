"""Clusters that outlive runs: deletion of runs and drains, across changes of leader."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.replication.fake_controller import Cluster, ControllerHarness

from cotswold.optim.server_rules import Sgd
from cotswold.paramserver.core.settings import AsyncSettings, QueueLimits
from cotswold.paramserver.core.update_server import UpdateServer
from cotswold.replication.controller.leader_election import Transact
from cotswold.replication.controller.settings import ControllerSettings
from cotswold.replication.replica.bucket_state import BucketState
from cotswold.replication.replica.server import ReplicaServer
from cotswold.replication.replica.settings import ReplicationSettings
from cotswold.shards.core.shard_server import ShardServer
from cotswold.simulate.protocols.lists import ListArithmetic, ListUpdates
from cotswold.wire import (
    Assign,
    Create,
    DeleteRun,
    DeleteRunRequest,
    DiskStateReply,
    DiskStateRequest,
    Drain,
    DrainStatus,
    FenceReply,
    Group,
    Heartbeat,
    LeaseGrant,
    LookupRequest,
    NotLeader,
    PeerUnreachable,
    ReplicaServerStatus,
    RunDeleted,
    RunDescription,
    RunDescriptionRequest,
    ServerExited,
    Shard,
    StatusReply,
    StatusRequest,
    Undrain,
    Undrained,
)

THREE, TWO = ControllerSettings(replication_factor=3), ControllerSettings(replication_factor=2)


def another(cluster: Cluster, name: str = "two") -> Cluster:
    """Return another controller that leads next, with the same servers."""
    found = Cluster("", cluster.controller.control, cluster.state, name, 0)
    found.now, found.there, found.learns = cluster.now + 3, cluster.there, cluster.learns
    found.live(2.5)
    assert found.controller.leads(found.now)
    return found


def drained(cluster: Cluster, server: str, seconds: float = 30.0) -> DrainStatus:
    """Return the reply about a drain."""
    (answer,) = cluster.asked(Drain(server, seconds))
    assert isinstance(answer, DrainStatus) and answer.server == server
    return answer


# --- who is silent ---


def with_silent_members() -> tuple[Cluster, Group, str]:
    """Return a cluster, the group of a bucket whose members are silent, and the live server."""
    cluster = Cluster("abc", TWO)
    group = cluster.group_of("run/0000")
    (left,) = set("abc") - set(group.members)
    for each in group.members:
        cluster.there.pop(each)
    return cluster, group, left


def test_a_bucket_waits_for_silent_members_until_an_operator_gives_them_up() -> None:
    cluster, group, left = with_silent_members()
    cluster.take(DiskStateRequest)
    for _ in range(700):
        cluster.pass_time(0.1, left)
        for asked in cluster.take(DiskStateRequest):
            assert asked.to == left
            cluster.tell(left, DiskStateReply("run/0000", left, 0, 1, 5))
    assert cluster.group_of("run/0000") == group, "they may have more than a disk of long ago"
    (told,) = [each for each in cluster.controller.take_events() if each.kind == "unavailable"]
    assert all(each in told.sentence for each in group.members) and "--lost" in told.sentence
    (answer,) = cluster.asked(Drain(left, 1.0, is_lost=True))
    assert isinstance(answer, DrainStatus) and cluster.controller.servers.is_alive(left), (
        "who is heard is not lost"
    )
    for each in group.members:
        cluster.tell("client", Drain(each, 0.0, is_lost=True))
    cluster.pass_time(0.2, left)
    assert cluster.take(DiskStateRequest) == [], "it has answered"
    cluster.pass_time(4.0, left)
    assert cluster.group_of("run/0000").primary == left and cluster.group_of("run/0000").incarnation > 0


def test_who_was_given_up_and_is_heard_again_is_there_again_with_what_it_has() -> None:
    cluster, group, left = with_silent_members()
    cluster.pass_time(2.0, left)
    for each in group.members:
        cluster.tell("client", Drain(each, 0.0, is_lost=True))
    for _ in range(320):
        cluster.pass_time(0.1, left)
        for _ in cluster.take(DiskStateRequest):
            cluster.tell(left, DiskStateReply("run/0000", left, 0, 0, -1))
    assert cluster.group_of("run/0000") == group
    events = cluster.controller.take_events()
    told = [each.sentence for each in events if each.kind == "unavailable"]
    assert len(told) == 1 and "no available server has any of it" in told[0]
    assert [each.name for each in events if "is declared lost by an operator" in each.sentence] == [
        *group.members
    ]
    cluster.there.update(dict.fromkeys(group.members))
    cluster.live(2.0)
    assert cluster.group_of("run/0000").primary in group.members
    assert all(cluster.controller.servers.is_alive(each) for each in group.members)
    gone = group.members[0]
    cluster.there.pop(gone)
    cluster.pass_time(2.0, left)
    cluster.tell("client", Drain(gone, 0.0, is_lost=True))
    cluster.end(gone)  # its supervisor has seen that
    cluster.beat(gone)  # which was on its way
    assert not cluster.controller.servers.is_alive(gone)


# --- runs ---


def test_a_run_that_is_removed_while_a_primary_is_elected_does_not_come_back() -> None:
    cluster = Cluster("abc", ControllerSettings(replication_factor=3))
    group = cluster.group_of("run/0000")
    cluster.answers = False
    cluster.end(group.primary)
    cluster.tell("client", DeleteRunRequest("run"))
    wish = cluster.controller.next_request(cluster.now)
    while not (isinstance(wish, Transact) and ("bucket/run/0000", None) in wish.put):
        assert wish is not None
        cluster.answered(wish)
        wish = cluster.controller.next_request(cluster.now)
    for name in group.secondaries:  # while the group is being deleted
        cluster.tell(name, FenceReply("run/0000", 2, name, 1, 7))
    cluster.sent += cluster.answered(wish)
    cluster.live(2.0)
    assert not any("run" in key for key in cluster.state.items) and not cluster.controller.groups
    assert cluster.asked(DeleteRunRequest("run")) == [RunDeleted("run")]


def test_of_a_run_that_is_removed_nothing_is_left_and_of_others_everything() -> None:
    cluster = Cluster("abcd", TWO, buckets=150)
    cluster.found(5, "other")
    puts: list[Transact] = []
    do = cluster.state.do
    cluster.state.do = lambda wish: puts.append(wish) or do(wish)  # type: ignore[method-assign, func-returns-value]  # seen
    assert cluster.asked(DeleteRunRequest("run")) == [], "not yet"
    told = []
    for _ in range(4):
        cluster.pass_time(0.05, "abcd")
        told += [each.message for each in cluster.take(RunDeleted)]
    assert told == [RunDeleted("run")]
    removal = [each for each in puts if any(value is None for _, value in each.put)]
    assert len(removal) == 4 and max(len(each.put) for each in removal) <= 60, "description, then 60 each"
    assert {each.compare for each in removal} == {(cluster.controller.election.key,)}
    assert {key.partition("/")[0] for key in cluster.state.items if "run/0" in key} <= {"run"}
    assert not any(key.startswith(("bucket/run/", "run/run/")) for key in cluster.state.items)
    assert len(cluster.controller.groups) == 5 and cluster.copies() == dict.fromkeys("abcd", 0)
    assert (
        cluster.asked(DeleteRunRequest("run"))
        == [RunDeleted("run")]
        == cluster.asked(DeleteRunRequest("run"))
    )
    assert cluster.asked(RunDescriptionRequest("run"))[:1] == [RunDescription("run", "")]


def test_a_run_that_is_removed_is_not_made_again_by_a_message_that_was_late() -> None:
    cluster = Cluster("ab", TWO)
    cluster.tell("client", DeleteRunRequest("run"))
    cluster.live(0.2)
    cluster.tell("client", Create("run", "what they hold", ("run/0000",), 1))
    cluster.live(0.2)
    assert not cluster.controller.groups and not any("run/" in key for key in cluster.state.items)


def test_whoever_leads_next_goes_on_with_a_removal() -> None:
    cluster = Cluster("ab", TWO, buckets=150)
    cluster.tell("client", DeleteRunRequest("run"))
    for _ in range(2):  # the description, and sixty groups
        wish = cluster.controller.next_request(cluster.now)
        while not isinstance(wish, Transact) or all(value is not None for _, value in wish.put):
            assert wish is not None
            cluster.answered(wish)
            wish = cluster.controller.next_request(cluster.now)
        cluster.answered(wish)
    assert sum(key.startswith("bucket/") for key in cluster.state.items) == 90
    other = another(cluster)
    assert not other.controller.groups and not any("run/" in key for key in other.state.items)


def test_what_was_on_its_way_when_a_run_is_removed_does_not_stay() -> None:
    cluster = Cluster("abc", TWO, buckets=3)
    cluster.end(cluster.controller.groups["run/0000"].secondaries[0])
    wish = cluster.controller.next_request(cluster.now)
    assert isinstance(wish, Transact) and wish.put[0][0].startswith("bucket/"), "a group without it"
    cluster.tell("client", DeleteRunRequest("run"))
    cluster.answered(wish)
    cluster.live(0.3)
    assert not cluster.controller.groups and not any("run/" in key for key in cluster.state.items)


def test_a_removal_ends_elections_of_its_buckets() -> None:
    cluster = Cluster("abc", THREE, buckets=2)
    cluster.answers = False
    cluster.end(cluster.controller.groups["run/0000"].primary)
    cluster.live(0.1)
    assert cluster.controller.unsettled_buckets
    cluster.tell("client", DeleteRunRequest("run"))
    cluster.answers = True
    cluster.live(1.0)
    assert not cluster.controller.groups and not cluster.controller.unsettled_buckets


def test_what_a_leader_that_was_wants_to_put_does_not_bring_a_removed_run_back() -> None:
    one = Cluster("abc", TWO, buckets=2)
    late = one.controller.groups["run/0000"]
    one.end(late.secondaries[0])
    wish = one.controller.next_request(one.now)
    assert isinstance(wish, Transact) and wish.put[0][0].startswith("bucket/")
    two = another(one)
    two.tell("client", DeleteRunRequest("run"))
    two.live(0.3)
    assert not one.state.do(wish) and not any(key.startswith("bucket/") for key in one.state.items)


def test_a_server_that_has_something_of_no_run_that_is_there_forgets_it_and_has_its_lease() -> None:
    cluster = Cluster("ab", TWO)

    def said(*runs: str, claims: tuple[tuple[str, int], ...] = ()) -> list[object]:
        here = Heartbeat("a", "host a", "at a", 1, claims, runs=runs)
        return [each.message for each in cluster.tell("a", here)]

    def forget(run: str) -> DeleteRun:
        leading = cluster.controller.election
        return DeleteRun(leading.epoch, run, leading.cluster)

    answers = said("run", "was", claims=(("was/0000", 3),))
    assert forget("was") in answers and forget("run") not in answers
    assert any(isinstance(each, LeaseGrant) for each in answers), "it leads nothing that is anybody's"
    assert not any(isinstance(each, DeleteRun) for each in said("was")), "it was told just now"
    cluster.live(0.3)
    assert forget("was") in said("was"), "it says so again"


def test_a_state_that_was_lost_takes_nothing_from_servers_of_the_one_that_was() -> None:
    cluster = Cluster("ab", TWO)
    was = cluster.controller.election.cluster
    cluster.state.items.clear()
    after = Cluster("", TWO, cluster.state, "two", 0)
    after.live(2.5)
    here = Heartbeat("a", "host a", "at a", 1, (("run/0000", 3),), runs=("run",), cluster=was)
    assert after.controller.leads(after.now) and after.controller.election.cluster != was
    for _ in range(3):
        assert after.tell("a", here) == [], "neither a lease nor that it is to forget anything"
    told = [each for each in after.controller.take_events() if each.kind == "unknown_server"]
    assert len(told) == 1 and was in told[0].sentence and "run" in told[0].sentence
    assert after.controller.servers.is_alive("a") is False, "nor is it given copies"
    assert any(
        isinstance(each.message, LeaseGrant) for each in after.tell("a", replace(here, cluster="", runs=()))
    )


def test_the_one_controller_of_a_state_that_is_lost_under_it_leads_another_cluster() -> None:
    cluster = Cluster("ab", TWO)
    was = cluster.controller.election.cluster
    cluster.state.items.clear()
    cluster.live(3.0)
    assert cluster.controller.leads(cluster.now) and cluster.controller.election.cluster not in ("", was)


def test_whoever_leads_next_leads_the_same_cluster() -> None:
    cluster = Cluster("ab", TWO)
    was = cluster.controller.election.cluster
    two = another(cluster)
    assert two.controller.leads(two.now) and two.controller.election.cluster == was


def test_a_server_that_has_anything_hears_no_lease_and_forgets_nothing_of_another_cluster() -> None:
    keeper = ReplicaServer("a", "host", "at a", contents, ReplicationSettings(), 0.0)

    def here(now: float) -> Heartbeat:
        (said,) = [each.message for each in keeper.tick(now) if isinstance(each.message, Heartbeat)]
        return said

    keeper.receive("one", LeaseGrant(1, "a", here(1.0).number, 1.0, "first"), 1.0)
    assert keeper.cluster == "first" and here(2.0).cluster == "", "it has nothing that is anybody's"
    keeper.receive("two", LeaseGrant(2, "a", here(3.0).number, 1.0, "second"), 3.0)
    assert keeper.cluster == "second" and keeper.lease.holds(3.5)
    keeper.receive("two", Assign(2, Group("run/0000", 1, "a")), 3.5)
    said = here(5.0)
    assert said.cluster == "second"
    keeper.receive("three", LeaseGrant(3, "a", said.number, 1.0, "third"), 5.0)
    keeper.receive("three", DeleteRun(3, "run", "third"), 5.0)
    assert keeper.cluster == "second" and not keeper.lease.holds(5.0) and [*keeper.runs] == ["run"]
    keeper.receive("four", DeleteRun(4, "run", "second"), 5.0)
    assert [*keeper.runs] == []
    after = ReplicaServer("a.1", "host", "at a", contents, ReplicationSettings(saves=True), 0.0)
    after.found_on_disk(["run/0000"], "second")
    after.receive("three", DeleteRun(3, "run", "third"), 0.0)
    assert after.cluster_name == "second" and after.take_forgotten() == []


def test_a_run_whose_groups_are_not_written_yet_is_not_forgotten() -> None:
    cluster = Cluster("ab", TWO)
    cluster.tell("client", Create("new", "what they hold", ("new/0000",), 1))
    here = Heartbeat("a", "host a", "at a", 1, (), runs=("new",))
    for _ in range(4):  # the description is to be put, is on its way, and the groups likewise
        assert not any(isinstance(each.message, DeleteRun) for each in cluster.tell("a", here))
        wish = cluster.controller.next_request(cluster.now)
        assert not any(isinstance(each.message, DeleteRun) for each in cluster.tell("a", here))
        if wish is not None:
            cluster.answered(wish)
    assert "new/0000" in cluster.controller.groups


def contents(bucket: str) -> BucketState[list[float]]:
    shards = [Shard(0, bucket, 0, 2, "", 0)]
    server = ShardServer(bucket, shards, ListArithmetic())
    settings = AsyncSettings("run", "weights", Sgd(), {"": 2}, 8, room=QueueLimits(1000, 1000))
    return BucketState(
        server, UpdateServer(server, settings, ListArithmetic(), ListUpdates()), ListArithmetic()
    )


def test_a_replica_server_drops_its_data_of_a_run_in_memory_and_on_disk() -> None:
    keeper = ReplicaServer("a", "host", "at a", contents, ReplicationSettings(saves=True), 0.0)
    keeper.found_on_disk(["was/0000", "run/0001"])
    for bucket in ("run/0000", "other/0000"):
        keeper.receive("one", Assign(3, Group(bucket, 1, "a")), 0.0)
    assert keeper.runs == ("other", "run", "was")
    (here,) = [each.message for each in keeper.tick(1.0) if isinstance(each.message, Heartbeat)]
    assert here.runs == keeper.runs
    keeper.receive("one", DeleteRun(2, "run"), 1.0)
    assert keeper.runs == ("other", "run", "was"), "of a controller that leads no more"
    saves = dict(keeper.saves())
    for run in ("run", "was"):
        keeper.receive("one", DeleteRun(3, run), 1.0)
    assert set(keeper.copies) == {"other/0000"} and "run" not in keeper.runs
    assert sorted(keeper.take_forgotten()) == ["run/0001", "was/0000"] and keeper.take_forgotten() == []
    for number in saves:  # the disk has done it before it heard
        keeper.saved(number)
    keeper.on_read("run/0000", None)
    assert list(keeper.runs) == ["other"] and keeper.drain(1.0) == []


# --- drains ---


def test_a_server_is_drained_of_its_copies_and_leads_and_gets_none_until_it_may() -> None:
    cluster = Cluster("abcd", TWO, buckets=12)
    assert cluster.copies()["a"] > 0 < cluster.leads()["a"]
    answer = drained(cluster, "a")
    assert answer.left == cluster.copies()["a"]
    cluster.live(3.0)
    assert drained(cluster, "a") == DrainStatus("a", 0, "a has no copies")
    groups = cluster.controller.groups.values()
    assert cluster.copies()["a"] == 0 and all(len(each.members) == 2 for each in groups)
    cluster.found(4, "more")
    assert cluster.copies("more")["a"] == 0
    assert "drain/a" in cluster.state.items
    assert cluster.asked(Undrain("a")) == [Undrained("a")] == cluster.asked(Undrain("a"))
    cluster.live(0.1)
    assert "drain/a" not in cluster.state.items
    cluster.found(4, "later")
    assert cluster.copies("later")["a"] > 0


def test_a_primary_hands_over_to_a_member_after_a_learner_has_caught_up() -> None:
    cluster = Cluster("abc", TWO, buckets=1)
    before = cluster.group_of("run/0000")
    cluster.learns = False
    drained(cluster, before.primary)
    cluster.live(1.0)
    learning = cluster.group_of("run/0000")
    assert learning.primary == before.primary and len(learning.learners) == 1
    assert drained(cluster, before.primary).copying
    cluster.learns = True
    cluster.live(1.0)
    after = cluster.group_of("run/0000")
    assert before.primary not in after.all_servers and len(after.members) == 2 and not after.learners


def test_an_only_copy_is_nowhere_dropped_before_another_has_it() -> None:
    cluster = Cluster("a", ControllerSettings(replication_factor=1), buckets=1)
    answer = drained(cluster, "a")
    cluster.live(1.0)
    answer = drained(cluster, "a")
    assert answer.left == 1
    assert answer.why == (
        "no other server can take bucket 0 of run from a: add a server, or end the drain of a"
    )
    cluster.there["b"] = None
    cluster.live(1.0)
    assert drained(cluster, "a").left == 0 and cluster.group_of("run/0000").members == ("b",)


@pytest.mark.parametrize(("least", "left"), [(1, 0), (2, 1)])
def test_where_no_server_is_free_as_many_members_stay_as_there_must_be(least: int, left: int) -> None:
    cluster = Cluster("ab", ControllerSettings(replication_factor=2, replication_factor_min=least), buckets=1)
    drained(cluster, "a")
    cluster.live(1.0)
    answer = drained(cluster, "a")
    assert answer.left == left and ("no other server" in answer.why) == bool(left)


def test_half_of_the_time_is_over_and_no_learner_is_waited_for_any_more() -> None:
    cluster = Cluster("abc", TWO, buckets=1)
    cluster.learns = False
    server = cluster.group_of("run/0000").primary
    drained(cluster, server, 4.0)
    cluster.live(1.5)
    assert drained(cluster, server, 4.0).left == 1
    cluster.live(1.5)
    assert drained(cluster, server, 4.0).left == 0


def test_a_drain_waits_while_other_members_are_silent_and_loses_none_of_them() -> None:
    cluster = Cluster("abc", THREE, buckets=1)
    server = cluster.group_of("run/0000").primary
    cluster.answers = False
    drained(cluster, server)
    cluster.live(1.0)
    group = cluster.group_of("run/0000")
    assert group.primary == server and len(group.members) == 3, "as it was, in another term"
    assert 2 <= group.term <= 3, "it is not tried again at once"
    cluster.answers = True
    cluster.live(5.0)
    assert drained(cluster, server).left == 0


def test_whoever_leads_next_goes_on_with_a_drain() -> None:
    cluster = Cluster("abcd", TWO, buckets=12)
    cluster.learns = False
    drained(cluster, "a")
    cluster.live(0.3)
    assert any(each.learners for each in cluster.controller.groups.values())
    cluster.learns = True
    other = another(cluster)
    other.live(3.0)
    assert other.copies()["a"] == 0 and drained(other, "a").left == 0
    assert all(len(each.members) == 2 for each in other.controller.groups.values())


def server_seen(cluster: Cluster, name: str) -> ReplicaServerStatus:
    (looked,) = cluster.asked(StatusRequest())
    assert isinstance(looked, StatusReply)
    (found,) = [each for each in looked.servers if each.name == name]
    return found


def test_a_drain_that_is_done_is_written_down_and_stays_after_the_servers_process_has_ended() -> None:
    cluster = Cluster("abcd", replace(TWO, forget_seconds=20.0), buckets=8)
    drained(cluster, "a")
    cluster.live(3.0)
    assert cluster.state.items["drain/a"] == "0.0"
    for _ in range(2):  # its supervisor says so again and again
        cluster.end("a", "ended with exit code 0")
        cluster.live(0.1)
    events = [each.sentence for each in cluster.controller.take_events() if " a " in f" {each.sentence}"]
    assert events[-2:] == [
        "a has no copies left",
        "a ended with exit code 0; it was drained and had no copies",
    ]
    cluster.live(30.0)
    other = another(cluster)
    other.live(30.0)
    assert server_seen(other, "a").state == "drained"
    assert not [each for each in other.controller.take_events() if each.kind in ("lost", "drained")]
    other.there["a.1"] = None
    other.live(2.0)
    other.found(6, "more")
    assert other.copies("more")["a.1"] == 0 and "drain/a.1" in other.state.items
    assert other.asked(Undrain("a")) == [Undrained("a")]
    other.found(6, "later")
    assert other.copies("later")["a.1"] > 0


def test_the_heir_of_a_drained_disk_gets_no_copy_though_buckets_wait_for_a_server() -> None:
    cluster = Cluster("ab", TWO, buckets=4)
    drained(cluster, "a")
    cluster.live(3.0)
    cluster.end("a")
    cluster.there["a.1"] = None
    before = dict(cluster.controller.groups)
    cluster.live(3.0)
    assert dict(cluster.controller.groups) == before, "no bucket was copied to it, not for a moment"


def test_a_supervisor_hears_which_of_its_servers_are_drained_and_have_no_copies() -> None:
    cluster = Cluster(["server-a-0", "server-a-1", "server-b-0"], TWO, buckets=4)

    def told(station: str) -> tuple[str, ...]:
        (answer,) = [each.message for each in cluster.tell(station, RunDescriptionRequest(""))]
        assert isinstance(answer, RunDescription)
        return answer.drained

    cluster.learns = False
    drained(cluster, "server-a-0")
    cluster.live(0.3)
    assert told("station-1/a") == (), "it has copies"
    cluster.learns = True
    cluster.live(3.0)
    assert told("station-1/a") == ("server-a-0",) and told("station-1/b") == told("operator-1/a") == ()
    assert told("coordinator") == ("server-a-0",), "whose host has the controller"
    for host in ("station-1/b", "coordinator"):
        cluster.tell(host, Drain("server-b-0", 25.0))
    cluster.live(3.0)
    assert told("station-1/b") == (), "its host drains it, and ends by itself"
    assert "drain/server-b-0" not in cluster.state.items
    cluster.asked(Undrain("server-a-0"))
    assert told("station-1/a") == ()


def test_a_supervisor_hears_of_a_drain_once_that_is_written_down_for_whoever_leads_next() -> None:
    cluster = Cluster(["server-a-0", "server-b-0", "server-c-0"], TWO, buckets=0)
    drained(cluster, "server-a-0")
    cluster.now += 0.2
    cluster.controller.tick(cluster.now)  # it has no copies, and nothing is written meanwhile
    (before,) = cluster.tell("station-1/a", RunDescriptionRequest(""))
    cluster.live(0.1)
    (after,) = cluster.tell("station-1/a", RunDescriptionRequest(""))
    assert cluster.state.items["drain/server-a-0"] == "0.0"
    assert isinstance(before.message, RunDescription) and before.message.drained == ()
    assert isinstance(after.message, RunDescription) and after.message.drained == ("server-a-0",)


def test_a_drain_goes_on_after_all_servers_died_and_the_drained_disk_has_the_most() -> None:
    cluster = Cluster("abc", TWO, buckets=4)
    cluster.learns = False
    drained(cluster, "a")
    cluster.live(0.1)
    for each in "abc":
        cluster.end(each)
    cluster.there |= dict.fromkeys(("a.1", "b.1", "c.1"))
    cluster.live(0.5)
    assert float(cluster.state.items["drain/a.1"]) > 0, "its disk may be asked"
    assert drained(cluster, "a.1").left == 3, "buckets may go on from its disk"
    cluster.saved = {"a": 9, "b": 7, "c": 7}
    cluster.live(0.5)
    assert cluster.copies()["a.1"] == 4
    cluster.learns = True
    cluster.live(8.0)
    assert cluster.copies()["a.1"] == 0 and cluster.state.items["drain/a.1"] == "0.0"
    events = [each.sentence for each in cluster.controller.take_events()]
    assert events.count("a.1 has no copies left") == 1


def test_a_server_that_ends_before_the_order_to_drain_it_comes_is_drained_by_its_disk() -> None:
    cluster = Cluster("abc", TWO, buckets=3)
    cluster.end("a")
    cluster.live(2.0)
    cluster.tell("station-1/a", Drain("a", 25.0))
    cluster.live(0.1)
    assert "drain/a" not in cluster.state.items, "its host comes back without a drain"
    assert drained(cluster, "a").left == 0
    cluster.there["a.1"] = None
    cluster.live(3.0)
    assert cluster.copies()["a.1"] == 0 and cluster.state.items["drain/a.1"] == "0.0"


def test_an_operator_may_want_what_a_host_has_begun() -> None:
    cluster = Cluster("abc", TWO, buckets=2)
    cluster.tell("station-1/a", Drain("a", 25.0))
    drained(cluster, "a")
    cluster.live(0.1)
    assert "drain/a" in cluster.state.items


def test_nobody_can_drain_a_server_that_is_not_there() -> None:
    cluster = Cluster("ab", TWO)
    assert drained(cluster, "z").why == "unknown server z; the cluster's status lists all servers"
    cluster.live(0.1)
    assert "drain/z" not in cluster.state.items


def test_who_looks_sees_that_a_drain_is_why_copies_are_missing() -> None:
    cluster = Cluster("abc", THREE, buckets=2)
    drained(cluster, "a")
    cluster.live(3.0)
    back = (
        "2 servers are available, and a is drained: end a drain (`cotswold cluster drain a --back`), or add"
    )
    for is_there in (True, False):
        (seen,) = cluster.asked(StatusRequest())
        assert isinstance(seen, StatusReply) and seen.short[0].why.startswith(back), is_there
        cluster.end("a")


# --- status ---


def test_who_looks_sees_servers_runs_what_is_short_and_what_happened() -> None:
    cluster = Cluster("abc", THREE, buckets=4)
    cluster.there.pop("c")
    cluster.live(1.5)
    cluster.end("b")
    cluster.live(0.5)
    (seen,) = cluster.asked(StatusRequest())
    assert isinstance(seen, StatusReply)
    assert (seen.controller, seen.epoch, seen.replication_factor, seen.least) == ("one", 1, 3, 1)
    assert [(each.name, each.state, each.host) for each in seen.servers] == [
        ("a", "living", "host a"),
        ("b", "ended", "host b"),
        ("c", "gone", "host c"),
    ]
    assert seen.servers[0].leads == 4 and 1.9 < seen.servers[2].seconds < 2.2
    assert [(each.run, each.buckets, each.short) for each in seen.runs] == [("run", 4, 4)]
    assert len(seen.short) == 4 and "one server is available: add a server (" in seen.short[0].why
    sentences = [each.sentence for each in seen.events]
    assert any(" was killed by SIGKILL" in each for each in sentences)
    assert all(each.seconds >= 0 for each in seen.events)
    follower = ControllerHarness(cluster.state, "follower")
    assert isinstance(follower.tell("client", StatusRequest())[0].message, NotLeader)


def test_buckets_with_fewer_members_than_there_must_be_are_counted() -> None:
    cluster = Cluster("ab", ControllerSettings(replication_factor=2, replication_factor_min=2), buckets=2)
    cluster.end("a")
    cluster.live(0.5)
    (seen,) = cluster.asked(StatusRequest())
    assert isinstance(seen, StatusReply) and seen.runs[0].waiting == 2
    assert all(each.members == ("b",) for each in seen.short)


def test_a_failover_is_told_with_its_reason_term_and_time() -> None:
    cluster = Cluster("abc", THREE, buckets=1)
    group = cluster.group_of("run/0000")
    cluster.controller.take_events()
    cluster.there.pop(group.primary)
    cluster.live(2.0)
    (event,) = [each for each in cluster.controller.take_events() if each.kind == "elected"]
    assert event.sentence.startswith(f"bucket 0 of run: primary {group.primary} missed 2")
    assert f"secondary {event.name} took over, term 2, in " in event.sentence
    assert event.sentence.endswith(" ms")


def test_only_groups_of_the_runs_of_a_client_are_found() -> None:
    cluster = Cluster("ab", TWO, buckets=2)
    cluster.found(3, "other")
    (found,) = cluster.asked(LookupRequest((("other/0000", 1), ("other/0001", 0), ("other/0002", 0))))
    assert sorted(each.bucket for each in found.groups) == ["other/0001", "other/0002"]  # type: ignore[attr-defined]  # a `LookupReply`


def test_a_death_that_was_told_to_whoever_led_before_is_no_news() -> None:
    cluster = Cluster("abc", TWO, buckets=2)
    cluster.end("a")
    cluster.live(1.0)
    other = another(cluster)
    other.controller.take_events()
    other.tell("supervisor", ServerExited("a", "was killed by SIGKILL"))
    other.live(0.5)
    assert "a" not in other.controller.servers.of
    assert not [each for each in other.controller.take_events() if each.kind == "lost"]


def test_what_befalls_many_buckets_by_one_cause_is_one_sentence_and_each_is_to_be_had() -> None:
    cluster = Cluster("abc", THREE, buckets=30)
    led = [each.bucket for each in cluster.controller.groups.values() if each.primary == "a"]
    cluster.controller.take_events()
    cluster.end("a")
    cluster.live(0.5)
    singles = [each for each in cluster.controller.take_events() if each.kind == "elected"]
    assert len(singles) == len(led) == 10
    assert not cluster.controller.take_summaries(cluster.now), "there may be more"
    cluster.live(1.5)
    told = [
        each.sentence for each in cluster.controller.take_summaries(cluster.now) if each.kind == "elected"
    ]
    (sentence,) = told
    assert sentence.startswith("10 buckets of run: primary a was killed by SIGKILL; secondaries ")
    assert "b (5)" in sentence and "c (5)" in sentence and " took over, term 2, in " in sentence
    (seen,) = cluster.asked(StatusRequest())
    assert isinstance(seen, StatusReply)
    (event,) = [each for each in seen.events if each.kind == "elected"]
    assert (event.sentence, event.run, event.servers) == (sentence, "run", (("b", 5), ("c", 5)))
    (own,) = cluster.asked(StatusRequest(led[0]))
    assert isinstance(own, StatusReply)
    (event, *_) = own.events
    assert event.sentence in [each.sentence for each in singles] and "; secondary " in event.sentence
    assert all(each.run == "run" and len(each.servers) == 1 for each in own.events)


def test_there_are_no_more_members_that_there_must_be_than_copies() -> None:
    with pytest.raises(ValueError, match="1 to 2"):
        ControllerSettings(replication_factor=2, replication_factor_min=3)


def test_servers_that_are_long_gone_and_have_nothing_are_shown_no_more() -> None:
    cluster = Cluster("abc", ControllerSettings(replication_factor=2, forget_seconds=20.0), buckets=2)
    cluster.end("a")
    cluster.there.pop("b")
    cluster.live(15.0)
    assert set(cluster.controller.servers.of) == set("abc")
    cluster.there["b"] = None
    cluster.live(25.0)
    assert set(cluster.controller.servers.of) == set("bc")


def interrupted(cluster: Cluster, server: str, heir: str) -> None:
    """Let the supervisor of a server die with it; a successor with the disk starts soon."""
    del cluster.there[server]
    cluster.there[heir] = None
    cluster.live(5.0)


def test_a_drain_that_the_death_of_a_supervisor_interrupts_goes_on_with_the_next_server() -> None:
    cluster = Cluster("abcd", TWO, buckets=12)
    cluster.learns = False
    assert drained(cluster, "a").left
    cluster.live(0.3)
    interrupted(cluster, "a", "a.1")
    cluster.learns = True
    cluster.live(3.0)
    assert drained(cluster, "a").left, "a group has the silent server"
    for each in list(cluster.controller.groups.values()):
        if "a" in each.secondaries:
            cluster.tell(each.primary, PeerUnreachable(each.bucket, each.term, each.primary, "a"))
    cluster.live(3.0)
    assert "drain/a" not in cluster.state.items and "drain/a.1" in cluster.state.items
    cluster.found(4, "more")
    assert cluster.copies("more").get("a.1", 0) == 0 and drained(cluster, "a").left == 0
    assert cluster.asked(Undrain("a")) == [Undrained("a")]
    cluster.live(0.1)
    assert not [each for each in cluster.state.items if each.startswith("drain/")]
    cluster.found(4, "later")
    assert cluster.copies("later")["a.1"] > 0


def test_a_server_that_its_host_drained_and_stopped_is_silent_and_no_operator_has_to_take_it_back() -> None:
    cluster = Cluster("abc", THREE)
    cluster.tell("station-1/c", Drain("c", 25.0))
    cluster.live(2.0)
    assert server_seen(cluster, "c").state == "draining"
    del cluster.there["c"]
    cluster.live(3.0)
    assert server_seen(cluster, "c").state == "gone"
    (seen,) = cluster.asked(StatusRequest())
    assert isinstance(seen, StatusReply) and "--back" not in seen.short[0].why


def test_a_drain_that_a_host_wanted_is_over_with_its_server() -> None:
    cluster = Cluster("abcd", TWO, buckets=12)
    cluster.learns = False
    cluster.tell("station-1/b", Drain("b", 25.0))
    assert "drain/b" not in cluster.state.items
    interrupted(cluster, "b", "b.1")
    cluster.live(3.0)
    assert not [each for each in cluster.state.items if each.startswith("drain/")]
    cluster.learns = True
    cluster.found(4, "later")
    assert cluster.copies("later")["b.1"] > 0
