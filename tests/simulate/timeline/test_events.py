"""The event simulation, compared with calculations by hand; seconds and bytes are powers of two and ten."""

from __future__ import annotations

import pytest
from tests.support.simulate.small_cases import cluster, link

from cotswold.simulate.hardware.cluster import Cluster
from cotswold.simulate.hardware.topology import Topology
from cotswold.simulate.timeline.actions import AllReduce, Compute, Post, Program, Wait
from cotswold.simulate.timeline.events import Timeline, run_programs

SECOND = 10**9
"""Bytes per second of a link."""


def played(described: Cluster, *programs: Program) -> Timeline:
    return run_programs(programs, Topology(described, len(programs)))


def send(target: int, seconds: int = 1, name: str = "x") -> Post:
    return Post(name, ((target, seconds * SECOND),))


HALF = cluster(hosts=4, network=link(latency_us=5e5))
"""A cluster with half a second between hosts."""


def test_a_message_takes_its_latency_and_its_bytes_over_the_rate_while_its_sender_computes() -> None:
    sender: Program = (Compute("a", 2.0), send(1), Compute("a", 1.0))
    receiver: Program = (Compute("b", 1.0), Wait("x", (0,)), Compute("b", 1.0))
    found = played(HALF, sender, receiver)
    assert found.seconds == 4.5  # 2 + 0.5 + 1 + 1
    first, second = found.ranks
    assert (first.work, first.hidden, first.exposed_seconds, first.imbalance) == ({"a": 3.0}, 1.0, 0.5, 1.0)
    assert (second.work, second.hidden, second.exposed_seconds, second.imbalance) == (
        {"b": 2.0},
        0.0,
        1.5,
        1.0,
    )
    assert (found.bytes_sent, found.bytes_between_hosts, found.messages) == (SECOND, SECOND, 1)


def test_a_sender_that_waits_goes_on_when_its_message_is_through() -> None:
    assert played(HALF, (send(1), Wait("x", (), (1,))), ()).ranks[0].exposed_seconds == 1.5


def test_messages_queue_at_the_card_of_the_host_that_sends_them() -> None:
    shared = cluster(hosts=3, devices=2)
    found = played(
        shared, (send(2),), (send(4),), (Wait("x", (0,)),), (), (Wait("x", (1,)), Compute("a", 1.0))
    )
    assert found.seconds == 3.0


def test_messages_queue_at_the_card_of_the_host_that_receives_them() -> None:
    shared = cluster(hosts=3)
    assert played(shared, (send(2),), (send(2),), (Wait("x", (0, 1)),)).seconds == 2.0


def test_messages_between_other_hosts_do_not_meet() -> None:
    apart = cluster(hosts=4)
    programs = (send(1),), (Wait("x", (0,)),), (send(3),), (Wait("x", (2,)),)
    assert played(apart, *programs).seconds == 1.0


def test_devices_of_a_host_do_not_queue_at_its_card() -> None:
    one = cluster(hosts=1, devices=4, inside=link(gbits=16))
    programs = (send(1),), (Wait("x", (0,)),), (send(3),), (Wait("x", (2,)),)
    assert played(one, *programs).seconds == 0.5


def test_an_uplink_is_shared_by_the_hosts_of_a_switch() -> None:
    uplink = link(latency_us=25e4, gbits=4)
    switched = cluster(hosts=4, switch={"hosts": 2, "uplink": uplink})
    programs = (send(2),), (send(3),), (Wait("x", (0,)),), (Wait("x", (1,)),)
    assert played(switched, *programs).seconds == pytest.approx(2 * 0.25 + 4.0)


def test_ranks_that_share_a_device_share_its_time() -> None:
    alone = cluster(hosts=1)
    assert played(alone, (Compute("a", 1.0),), (Compute("a", 3.0),)).seconds == 4.0
    assert played(alone, (Compute("a", 1.0),), (Compute("a", 3.0),)).ranks[0].work == {"a": 2.0}


def test_a_message_that_the_processor_carries_takes_its_time() -> None:
    busy = cluster(hosts=2, network=link(offload=0.5))
    found = played(busy, (send(1),), (Compute("a", 1.0), Wait("x", (0,))))
    assert found.seconds == 1.5
    nothing_left = cluster(hosts=2, network=link(offload=0.0))
    assert played(nothing_left, (send(1),), (Compute("a", 1.0), Wait("x", (0,)))).seconds == 2.0


def test_all_ranks_leave_a_reduction_together() -> None:
    found = played(HALF, (Compute("a", 1.0), AllReduce(0)), (AllReduce(0),), (AllReduce(0),))
    assert found.seconds == 1.0 + 2 * 2 * 0.5  # two steps of a tree, there and back
    assert found.ranks[1].imbalance == 1.0


def test_a_reduction_sends_every_byte_twice_past_each_rank_but_one_and_through_the_cards_of_hosts() -> None:
    apart = played(cluster(hosts=4), *[(AllReduce(12 * SECOND),)] * 4)
    assert apart.bytes_sent == apart.bytes_between_hosts == 2 * 3 * 12 * SECOND
    # of the ring's four links two join hosts
    paired = played(cluster(hosts=2, devices=2), *[(AllReduce(12 * SECOND),)] * 4)
    assert (paired.bytes_sent, paired.bytes_between_hosts) == (72 * SECOND, 36 * SECOND)
    assert played(cluster(hosts=1, devices=4), *[(AllReduce(12 * SECOND),)] * 4).bytes_between_hosts == 0


def test_the_seconds_of_a_rank_add_up_to_those_of_the_update() -> None:
    found = played(
        HALF, (Compute("a", 2.0), send(1), Compute("a", 1.0)), (Compute("b", 1.0), Wait("x", (0,)))
    )
    for rank in found.ranks:
        assert sum(rank.work.values()) + rank.exposed_seconds + rank.imbalance == pytest.approx(found.seconds)


def test_waiting_for_what_nobody_sends_is_found() -> None:
    with pytest.raises(AssertionError, match="no rank sends"):
        played(HALF, (Wait("x", (1,)),), ())
