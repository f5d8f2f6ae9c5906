"""Copies and primaries are balanced over servers: order, speed and risk."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.replication.controller.test_cluster_operation import another, drained
from tests.support.replication.fake_controller import PATIENCE, Cluster

from cotswold.replication.controller.bucket_map import read_group
from cotswold.replication.controller.election import Election, ElectionReason
from cotswold.replication.controller.leader_election import Transact
from cotswold.replication.controller.server_registry import LoadIndex
from cotswold.replication.controller.settings import ControllerSettings
from cotswold.wire import Drain, Fence, FenceReply, Group

THREE, TWO, ONE = (
    ControllerSettings(replication_factor=3),
    ControllerSettings(replication_factor=2),
    ControllerSettings(replication_factor=1),
)


class Watched:
    """Records the stored groups of buckets while something happens."""

    def __init__(self, cluster: Cluster) -> None:
        self.groups: list[Group] = []
        self.most_learners = 0
        self._do, self._items = cluster.state.do, cluster.state.items
        cluster.state.do = self.do  # type: ignore[method-assign]  # to look on

    def do(self, wish: Transact) -> bool:
        is_done = self._do(wish)
        if is_done:
            self.groups += [read_group(text) for key, text in wish.put if text and key.startswith("bucket/")]
            groups = [read_group(text) for key, text in self._items.items() if key.startswith("bucket/")]
            self.most_learners = max(self.most_learners, sum(bool(each.learners) for each in groups))
        return is_done


def spread(counts: Mapping[str, int]) -> int:
    """Return the difference between the most and the fewest."""
    return max(counts.values()) - min(counts.values())


@pytest.mark.parametrize("control", [ONE, TWO, THREE])
def test_a_new_server_gets_as_many_copies_and_leads_as_others_and_then_nothing_moves(
    control: ControllerSettings,
) -> None:
    cluster = Cluster("abc", control, buckets=32)
    watched = Watched(cluster)
    cluster.there["d"] = None
    cluster.live(60.0)
    assert spread(cluster.copies()) <= 1 and spread(cluster.leads()) <= 1
    groups = cluster.controller.groups.values()
    assert all(len(each.members) == control.replication_factor and not each.learners for each in groups)
    assert watched.most_learners <= control.max_concurrent_moves
    assert min(len(each.members) for each in watched.groups) >= control.replication_factor, (
        "no copy less at any moment"
    )
    before = len(watched.groups)
    cluster.live(30.0)
    assert len(watched.groups) == before, "it is even, and stays so"


def test_leads_are_handed_over_only_after_a_calm_and_one_at_a_time() -> None:
    cluster = Cluster("abc", THREE, buckets=12)
    cluster.end("a")
    cluster.live(1.0)
    assert spread(cluster.leads()) <= 2
    cluster.there["d"] = None
    cluster.live(2.0)
    assert cluster.copies()["d"] == 12 and cluster.leads()["d"] == 0
    watched = Watched(cluster)
    cluster.live(2.0)
    assert cluster.leads()["d"] == 0 and not watched.groups, "not calm yet"
    cluster.live(1.5)
    assert 1 <= cluster.leads()["d"] <= 2
    cluster.live(10.0)
    assert spread(cluster.leads()) <= 1


def test_a_lead_is_handed_over_by_the_same_members_and_none_learns_anew() -> None:
    cluster = Cluster("ab", TWO, buckets=4)
    cluster.end("b")
    cluster.live(0.5)
    cluster.there["c"] = None
    cluster.live(1.0)
    watched = Watched(cluster)
    cluster.live(15.0)
    assert cluster.leads() == {"a": 2, "c": 2}
    assert all(set(each.members) == {"a", "c"} for each in watched.groups)
    sentences = [each.sentence for each in cluster.controller.take_events() if each.kind == "rebalanced"]
    assert len(sentences) == 2
    assert sentences[0].endswith(" ms")
    assert "a leads 4 buckets, and c 0; secondary c leads now, term" in sentences[0]


def test_the_buckets_of_a_dead_server_go_evenly_to_the_living() -> None:
    cluster = Cluster("abcdef", THREE, buckets=60)
    cluster.end("a")
    cluster.live(5.0)
    assert spread(cluster.copies()) <= 1
    assert all(len(each.members) == 3 for each in cluster.controller.groups.values())
    cluster.live(30.0)
    assert spread(cluster.leads()) <= 1


def test_copies_go_to_different_hosts_once_there_are_some() -> None:
    cluster = Cluster("", TWO, buckets=0)
    cluster.there = dict.fromkeys(("a1", "a2", "a3"))
    cluster.live(0.5)
    cluster.found(9)
    cluster.there["b1"] = None
    cluster.live(30.0)
    hosts = [{name[0] for name in each.members} for each in cluster.controller.groups.values()]
    assert hosts == [{"a", "b"}] * 9
    assert (
        cluster.copies()["b1"] == 9
        and spread({name: cluster.copies()[name] for name in cluster.there if name != "b1"}) <= 1
    )


def test_whoever_leads_next_goes_on_with_what_was_being_moved() -> None:
    cluster = Cluster("abc", THREE, buckets=30)
    cluster.learns = False
    cluster.there["d"] = None
    cluster.live(2.0)
    assert any(each.learners for each in cluster.controller.groups.values())
    cluster.learns = True
    other = another(cluster)
    other.live(20.0)
    assert spread(other.copies()) <= 1
    assert all(len(each.members) == 3 for each in other.controller.groups.values())


def test_a_server_that_is_drained_gets_nothing_though_it_has_less() -> None:
    cluster = Cluster("abcd", TWO, buckets=16)
    cluster.tell("client", Drain("d", 30.0))
    cluster.live(20.0)
    assert drained(cluster, "d").left == 0
    assert spread({name: count for name, count in cluster.copies().items() if name != "d"}) <= 1


def test_nothing_is_evened_that_another_could_lose_an_only_copy_by() -> None:
    """With two members and a primary ahead of the secondary, the primary stays."""
    group = Group("run/0000", 4, "a", ("b",))
    election = Election(group, 10.0, ElectionReason.REBALANCE)
    asked = election.fence_requests(["a", "b"], 1, 10.0, 0.25)
    assert [each.to for each in asked] == ["a"], "it is asked first"
    election.record_reply(FenceReply("run/0000", 5, "a", 4, 9))
    assert election.fence_requests(["a", "b"], 1, 10.01, 0.25) == [], "what it has sent is on its way"
    (fence,) = election.fence_requests(["a", "b"], 1, 10.1, 0.25)
    assert fence.to == "b" and isinstance(fence.message, Fence)
    election.record_reply(FenceReply("run/0000", 5, "b", 4, 8))
    assert election.result(["a", "b"], True, 10.2, PATIENCE) == Group("run/0000", 5, "a", ("b",))
    election.answers["b"] = FenceReply("run/0000", 5, "b", 4, 9)
    assert election.result(["a", "b"], True, 10.2, PATIENCE) == Group("run/0000", 5, "b", ("a",))


def test_a_primary_that_has_more_than_two_others_learns_from_the_next() -> None:
    group = Group("run/0000", 4, "a", ("b", "c"))
    election = Election(group, 10.0, ElectionReason.REBALANCE, preferred="b")
    for name, index in {"a": 9, "b": 8, "c": 8}.items():
        election.record_reply(FenceReply("run/0000", 5, name, 4, index))
    assert election.result(["a", "b", "c"], True, 10.2, PATIENCE) == Group("run/0000", 5, "b", ("c",), ("a",))


@pytest.mark.soak
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_whatever_happens_copies_and_leads_are_even_in_the_end(data: st.DataObject) -> None:
    copies = data.draw(st.integers(1, 3))
    cluster = Cluster(
        "abcd", ControllerSettings(replication_factor=copies), buckets=data.draw(st.integers(1, 16))
    )
    names = iter("efghijkl")
    for _ in range(data.draw(st.integers(1, 4))):
        match data.draw(st.sampled_from(("come", "drain", "end", "lead"))):
            case "come":
                cluster.there[next(names)] = None
            case "drain":
                cluster.tell("client", Drain(data.draw(st.sampled_from(sorted(cluster.there))), 30.0))
            case "end" if copies > 1 and len(cluster.there) > copies:
                cluster.live(3.0)
                cluster.end(data.draw(st.sampled_from(sorted(cluster.there))))
            case "lead":
                cluster = another(cluster)
            case _:
                pass
        cluster.live(data.draw(st.sampled_from((0.1, 0.5, 2.0))))
    cluster.live(60.0)
    of = cluster.controller.servers.of
    able = [name for name in cluster.there if not of[name].is_drained]
    counts, leads = cluster.copies(), cluster.leads()
    if len(able) >= copies:
        assert spread({name: counts[name] for name in able}) <= 1, cluster.controller.groups
        assert spread({name: leads[name] for name in able}) <= 1, cluster.controller.groups
        groups = cluster.controller.groups.values()
        assert all(len(each.members) == copies and not each.learners for each in groups)
        assert sum(counts[name] for name in cluster.there if name not in able) == 0
    assert not cluster.controller.unsettled_buckets


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(-1, 6)), max_size=40), st.data())
def test_a_place_is_that_of_whoever_has_the_least_on_another_host(
    changes: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    loads, known = LoadIndex(), dict[str, tuple[str, int]]()
    for number, host, load in changes:
        name = f"server {number}"
        if load < 0:
            loads.remove(name)
            known.pop(name, None)
        else:
            loads.set_load(name, f"host {host}", load)
            known[name] = f"host {host}", load
    hosts = data.draw(st.sets(st.sampled_from([f"host {each}" for each in range(4)])))
    without = data.draw(st.sets(st.sampled_from([f"server {each}" for each in range(10)])))
    able = [(host in hosts, load, name) for name, (host, load) in known.items() if name not in without]
    assert loads.choose(hosts, without) == min(able, default=(False, 0, None))[2]
    assert loads.ascending == sorted((load, name) for name, (_, load) in known.items())
