"""Servers' claims of their buckets: complete once, then by number; and state in pages."""

from __future__ import annotations

import pytest
from tests.replication.controller.test_cluster_operation import contents
from tests.support.replication.fake_controller import Cluster, ControllerHarness, State

from cotswold.replication.controller import controller as controlling
from cotswold.replication.controller.leader_election import BEAT, Read, Transact
from cotswold.replication.controller.settings import ControllerSettings
from cotswold.replication.replica.server import ReplicaServer
from cotswold.replication.replica.settings import ReplicationSettings
from cotswold.wire import Assign, Group, Heartbeat, LeaseGrant, ServerExited
from cotswold.wire.names import bucket_of

TWO = ControllerSettings(replication_factor=2)


def beat(keeper: ReplicaServer[list[float]], now: float) -> Heartbeat:
    """Return the next heartbeat of a server."""
    (here,) = [each.message for each in keeper.tick(now) if isinstance(each.message, Heartbeat)]
    return here


def test_a_server_says_all_that_it_leads_until_it_has_a_lease_for_that() -> None:
    keeper = ReplicaServer("a", "host", "at a", contents, ReplicationSettings(), 0.0)
    keeper.receive("one", Assign(1, Group("run/0000", 1, "a")), 0.0)
    first, second = beat(keeper, 1.0), beat(keeper, 2.0)
    assert first.leads == second.leads == (("run/0000", 1),) and first.claims == second.claims
    keeper.receive("one", LeaseGrant(1, "a", second.number, 1.0), 2.1)
    third = beat(keeper, 3.0)
    assert third.leads is None and third.claims == first.claims
    keeper.receive("one", Assign(1, Group("run/0001", 1, "a")), 3.1)
    keeper.receive("one", LeaseGrant(1, "a", third.number, 1.0), 3.2)
    fourth = beat(keeper, 4.0)
    assert fourth.leads == (("run/0000", 1), ("run/0001", 1)) and fourth.claims > first.claims
    keeper.receive("one", LeaseGrant(1, "a", fourth.number, 1.0), 4.1)
    fifth = beat(keeper, 5.0)
    assert fifth.leads is None
    keeper.receive("two", LeaseGrant(2, "a", fifth.number, 0.0), 5.1)  # another leads, and does not know
    assert beat(keeper, 6.0).leads == fourth.leads
    assert not keeper.lease.holds(5.1 + 1.0), "that was no lease"


def said(cluster: Cluster, name: str, leads: tuple[tuple[str, int], ...] | None, claims: int) -> list[object]:
    """Return the replies to a server with these claims."""
    cluster.beats += 1
    here = Heartbeat(name, f"host {name}", f"at {name}", 7, leads, claims=claims, answered=cluster.beats)
    return [each.message for each in cluster.tell(name, here) if each.to == name]


def test_a_lease_is_given_for_what_was_said_before_only_while_it_is_true() -> None:
    cluster = Cluster("abc", TWO, buckets=3)
    group = cluster.group_of("run/0000")
    name, leading = group.primary, cluster.controller.election
    lease, none = (LeaseGrant(leading.epoch, name, 7, each, leading.cluster) for each in (1.0, 0.0))
    assert said(cluster, name, None, 5) == [none], "it has not said that"
    assert lease in said(cluster, name, (("run/0000", 1),), 5)
    assert said(cluster, name, None, 5) == [lease]
    assert said(cluster, name, None, 6) == [none]
    cluster.there.pop(name)
    cluster.tell("supervisor", ServerExited(group.secondaries[0], "was killed by SIGKILL"))
    cluster.live(0.2)
    assert said(cluster, name, None, 5) == [lease], "of another term, and it is still the primary"
    cluster.there.pop(group.secondaries[0], None)
    cluster.live(2.0)
    newest = cluster.group_of("run/0000")
    if newest.primary != name:
        answers = said(cluster, name, None, 5)
        assert not any(isinstance(each, LeaseGrant) for each in answers)
        assert any(isinstance(each, Assign) and each.group == newest for each in answers)


def test_a_server_that_leads_no_more_has_no_lease_for_what_it_said() -> None:
    cluster = Cluster("ab", TWO, buckets=1)
    before = cluster.group_of("run/0000")
    name, (other,) = before.primary, before.secondaries
    assert any(isinstance(each, LeaseGrant) for each in said(cluster, name, (("run/0000", 1),), 5))
    cluster.there.pop(name)
    cluster.live(2.0)
    assert cluster.group_of("run/0000").primary == other
    answers = said(cluster, name, None, 5)
    assert not any(isinstance(each, LeaseGrant) for each in answers)
    assert any(isinstance(each, Assign) and each.group.primary == other for each in answers)
    answers = said(cluster, name, (), 6)
    assert any(isinstance(each, LeaseGrant) and each.seconds for each in answers)


def test_a_leader_reads_in_pages_and_says_in_between_that_it_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Cluster("abc", TWO, buckets=20)
    monkeypatch.setattr(controlling, "_PAGE", 4)
    two, beats, pages = ControllerHarness(one.state, "two"), 0, 0
    two.now = one.now
    while not two.controller.leads(two.now):
        two.now += 0.1
        assert two.now < one.now + 30, "it never knows all"
        wish = two.controller.next_request(two.now)
        if isinstance(wish, Transact):
            beats += str(dict(wish.put).get(BEAT)).startswith("2 ")
        elif isinstance(wish, Read):
            pages += wish.limit == 4
        if wish is not None:
            two.answered(wish)
    keys = len(one.state.items)
    assert pages == keys // 4 + 1 and beats >= 2, "each answer takes a tenth of a second"
    assert two.controller.groups == one.controller.groups
    assert set(two.controller.groups) == {bucket_of("run", number) for number in range(20)}


def test_what_is_read_in_pages_is_whole_whatever_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    state = State()
    one = Cluster("abc", TWO, state, buckets=7)
    one.found(3, "other")
    for size in range(1, 20):
        monkeypatch.setattr(controlling, "_PAGE", size)
        found = ControllerHarness(State(), f"two {size}")
        found.state.items.update(state.items)
        found.now = one.now
        found.pass_time(3.0)
        assert found.controller.groups == one.controller.groups, size
        assert found.controller._state.view.map.runs == one.controller._state.view.map.runs
