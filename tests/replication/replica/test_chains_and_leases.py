"""Copies of a bucket on chains and slow links, leases, and the routing of clients."""

from __future__ import annotations

import pytest
from tests.support.replication.replica_group import BUCKET, GROUP, ReplicaGroup, contents, push, said

from cotswold.replication.client.router import Router
from cotswold.replication.replica.follower_progress import (
    BUCKET_SILENCE_FACTOR,
    Followers,
    PeerActivity,
    PrimaryState,
    is_silent,
)
from cotswold.replication.replica.lease import DRIFT, Lease
from cotswold.replication.replica.server import ReplicaServer
from cotswold.replication.replica.settings import ReplicationSettings
from cotswold.wire import (
    CONTROLLERS,
    COORDINATOR,
    Applied,
    BucketEnvelope,
    Group,
    Heartbeat,
    LookupReply,
    LookupRequest,
    NotLeader,
    NotPrimary,
    Prepare,
    Prepared,
    PullNewer,
    Send,
    StatusRequest,
)

# --- chains ---

CHAIN = ReplicationSettings(topology="chain")


def test_a_chain_hands_on_what_is_different_and_each_tells_the_primary() -> None:
    servers = ReplicaGroup("abcd", CHAIN)
    servers.begin(Group(BUCKET, 1, "a", ("b", "c", "d")))
    servers.prepares.clear()
    servers.ask("a", "client", push(1, 1.0, 2.0, 3.0, 4.0))
    servers.drain("a")
    assert len(said(servers.carry(), Applied)) == 1
    assert servers.prepares == [("a", "b"), ("b", "c"), ("c", "d")]
    servers.settle()
    assert servers.weights("a") == servers.weights("b") == servers.weights("c") == servers.weights("d")


def test_nothing_is_acknowledged_that_the_end_of_a_chain_lacks_and_a_broken_one_is_gone_round() -> None:
    servers = ReplicaGroup("abc", CHAIN)
    servers.begin(GROUP)
    servers.ask("a", "client", push(1, 1.0, 2.0, 3.0, 4.0))
    servers.drain("a")
    assert said(servers.carry(cut="bc"), Applied) == []
    for _ in range(6):
        servers.now += 0.1
        servers.say("a", servers.of["a"].tick(servers.now))
        answers = said(servers.carry(cut="bc"), Applied)
    assert len(answers) == 1, "the primary itself has sent it, half a second later"
    servers.prepares.clear()
    servers.ask("a", "client", push(2, 1.0, 0.0, 0.0, 0.0))
    servers.drain("a")
    assert len(said(servers.carry(cut="bc"), Applied)) == 1
    assert servers.prepares == [("a", "b"), ("a", "c")], "who was late is told directly for a while"
    servers.now += CHAIN.chain_bypass_seconds
    servers.lease("a")
    servers.settle()
    servers.prepares.clear()
    servers.ask("a", "client", push(3, 1.0, 0.0, 0.0, 0.0))
    servers.drain("a")
    assert len(said(servers.carry(), Applied)) == 1
    assert servers.prepares == [("a", "b"), ("b", "c")]


def test_a_secondary_takes_nothing_from_whoever_does_not_come_before_it() -> None:
    servers = ReplicaGroup("abcd", CHAIN)
    servers.begin(Group(BUCKET, 1, "a", ("b", "c"), ("d",)))
    primary, copy = servers.of["a"].copies[BUCKET], servers.of["b"].copies[BUCKET]
    told = primary.state.changes_since(-1)
    index = copy.index
    words = (BUCKET, 1, -1, index + 1, index, told.change, told.names, told.buffers)
    for name, sender in (("b", "c"), ("b", "d"), ("b", "x"), ("d", "b"), ("d", "c")):
        servers.tell(name, sender, Prepare(*words))
        assert servers.waiting == [], f"{name} hears {sender}"
    servers.tell("c", "b", Prepare(*words, onward=("b",)))
    assert [(each.to, type(each.message).__name__) for _, each in servers.waiting] == [("a", "Prepared")], (
        "it answers the primary, and hands nothing back"
    )


def test_a_learner_hears_from_the_primary_alone() -> None:
    servers = ReplicaGroup("abcd", CHAIN)
    servers.begin(GROUP)
    servers.assign(Group(BUCKET, 2, "a", ("b", "c"), ("d",)))
    servers.prepares.clear()
    servers.carry()
    servers.settle()
    assert {sender for sender, to in servers.prepares if to == "d"} == {"a"}
    assert servers.weights("d") == servers.weights("a")


# --- slow links ---


def test_a_server_that_speaks_of_other_buckets_is_not_silent_soon() -> None:
    copying = ReplicationSettings()
    assert is_silent("b", 10.0, PeerActivity({"b": 10.0}), 10.6, copying)
    assert is_silent("b", 10.0, PeerActivity(), 10.6, copying)
    assert not is_silent("b", 10.0, PeerActivity({"b": 10.5}), 10.6, copying)
    assert is_silent(
        "b", 10.0, PeerActivity({"b": 14.0}), 10.1 + BUCKET_SILENCE_FACTOR * copying.silent_seconds, copying
    )


def test_who_answers_late_is_waited_for_longer_before_it_is_sent_all_again() -> None:
    peers = Followers(ReplicationSettings(), PeerActivity())
    peers.set_group(GROUP, 0.0)

    def answer(index: int, now: float) -> None:
        for name in "bc":
            peers.on_prepared(name, Prepared(BUCKET, 1, name, index, False), offer(index), now)

    def offer(index: int) -> PrimaryState:
        return PrimaryState(BUCKET, 1, index, 0, lambda _: contents(BUCKET).changes_since(-1))

    def sent(index: int, now: float) -> int:
        sends = peers.watch(offer(index), now)
        return sum(isinstance(each.message, Prepare) and each.message.change is not None for each in sends)

    answer(0, 0.0)
    peers.send_changes(offer(1), 1.0)
    assert sent(1, 1.4) == 0
    assert sent(1, 1.6) == 2, "it may have been lost"
    answer(1, 1.9)
    peers.send_changes(offer(2), 3.0)
    assert sent(2, 3.8) == 0, "the last took long"
    assert sent(2, 4.1) == 2


def test_beats_to_whoever_has_all_are_few_while_its_server_hears_of_other_buckets() -> None:
    neighbours = PeerActivity()
    many = [Followers(ReplicationSettings(), neighbours) for _ in range(10)]
    beats = [0] * len(many)
    offer = PrimaryState(BUCKET, 1, 0, 0, lambda _: contents(BUCKET).changes_since(-1))
    for each in many:
        each.set_group(Group(BUCKET, 1, "a", ("b",)), 0.0)
        each.on_prepared("b", Prepared(BUCKET, 1, "b", 0, False), offer, 0.0)
    for tick in range(200):
        for place, each in enumerate(many):
            beats[place] += len(each.watch(offer, tick / 20))
    assert sum(beats) < 300, "10 s of a beat each 0.1 s, and of each bucket one each 0.5 s"
    assert min(beats) >= 10, "each is heard of"
    newer = PrimaryState(BUCKET, 1, 1, 1, lambda _: contents(BUCKET).changes_since(-1))
    for each in many:
        each["b"].next_index = each["b"].match_index = 1
    assert all(each.watch(newer, 10.2) for each in many), "that it is committed it hears at once"


# --- leases ---


def test_a_lease_counts_from_when_it_was_asked_for_and_a_little_less() -> None:
    lease = Lease()
    first, second = lease.request(10.0), lease.request(20.0)
    lease.grant(first, 1.0)
    assert lease.holds(10.9) and not lease.holds(11.0)
    assert lease.end == pytest.approx(11 - DRIFT)
    lease.grant(second, 1.0)
    assert lease.holds(20.9)
    lease.grant(first, 1000.0)  # it comes again, and late
    lease.grant(99, 1000.0)  # that was never asked for
    assert not lease.holds(21.0)


# --- routes ---


def test_a_router_asks_where_a_primary_is_that_another_server_has_named() -> None:
    """The router learns the term, but a group comes without its address."""
    router = Router(["controller"], [BUCKET])
    pull = PullNewer("run", 0, 0, (0,), (-1,))
    router.receive("controller", LookupReply((Group(BUCKET, 4, "a"),), (("a", "at a"),)), 0.0)
    router.send([Send(BUCKET, pull)], 0.1)
    router.receive("a", NotPrimary(BUCKET, 5, "b"), 0.2)
    router.send([Send(BUCKET, pull)], 0.3)  # which "b" does not get: nobody knows where it is
    assert router.tick(0.6) == [Send("controller", LookupRequest(((BUCKET, 5),), ("b",)))]
    router.receive("controller", LookupReply((), (("b", "at b"),)), 0.7)
    assert router.addresses["b"] == "at b"
    assert router.tick(1.0) == [Send("controller", LookupRequest(((BUCKET, 5),), ()))]


def test_a_router_sends_to_the_primary_and_asks_controllers_where_it_knows_none() -> None:
    router = Router(["controller"], [BUCKET])
    pull = PullNewer("run", 0, 0, (0,), (-1,))
    assert router.send([Send(BUCKET, pull), Send(COORDINATOR, pull)], 0.0) == [Send(COORDINATOR, pull)]
    assert router.tick(0.1) == [Send("controller", LookupRequest(((BUCKET, 0),)))]
    assert router.tick(0.2) == [], "it has just asked"
    router.receive("controller", LookupReply((Group(BUCKET, 4, "a"),), (("a", "at a"),)), 0.2)
    assert router.send([Send(BUCKET, pull)], 0.3) == [Send("a", BucketEnvelope(BUCKET, 4, pull))]
    assert router.addresses == {"a": "at a"}
    assert router.receive("a", BucketEnvelope(BUCKET, 4, pull), 0.4) == (BUCKET, pull)
    router.receive("a", NotPrimary(BUCKET, 5, "b"), 0.5)
    router.receive("c", NotPrimary(BUCKET, 3, "c"), 0.5)  # of long ago
    assert router.primary(BUCKET) == "b"
    router.send([Send(BUCKET, pull)], 1.0)
    router.receive("b", NotPrimary(BUCKET, 5, ""), 1.0)
    assert router.tick(1.0) == [Send("controller", LookupRequest(((BUCKET, 5),), ("b",)))], (
        "nobody there knows"
    )


def asked(router: Router, now: float) -> str:
    """Return the receiver of a request."""
    (send,) = router.send([Send(CONTROLLERS, StatusRequest())], now)
    return send.to


def test_a_leader_that_has_answered_is_asked_again_however_long_ago_that_was() -> None:
    router = Router(["a", "b", "c"])
    assert asked(router, 0.0) == "a"
    router.receive("a", NotLeader(1, "b"), 0.1)
    assert asked(router, 2.0) == "b"
    router.on_leader_message("b")  # with whatever it has answered
    assert asked(router, 9.0) == "b"
    router.receive("b", LookupReply((), ()), 9.1)
    assert asked(router, 20.0) == "b"


def test_a_leader_that_does_not_answer_is_one_no_more_and_the_next_is_asked() -> None:
    router = Router(["a", "b", "c"], leader_seconds=0.6)
    assert [asked(router, now) for now in (0.0, 0.5, 0.7, 0.8, 1.4)] == ["a", "a", "b", "b", "c"]
    router.on_leader_message("b")  # what comes late is of one that leads no more
    router.receive("c", NotLeader(1, ""), 1.5)
    assert [asked(router, now) for now in (1.6, 2.1)] == ["c", "a"], "it knows of nobody who leads"


def test_another_that_leads_is_asked_at_once_where_a_bucket_is() -> None:
    router = Router(["a", "b"], [BUCKET])
    router.send([Send(BUCKET, PullNewer("run", 0, 0, (0,), (-1,)))], 0.0)
    find = LookupRequest(((BUCKET, 0),))
    assert router.tick(0.1) == [Send("a", find)]
    router.receive("a", NotLeader(1, "b"), 0.15)
    assert router.tick(0.15) == [Send("b", find)]


def test_a_server_says_what_it_leads_with_each_beat() -> None:
    servers = ReplicaGroup("a")
    servers.begin(Group(BUCKET, 1, "a"))
    servers.now += 1
    sent = [each.message for each in servers.of["a"].tick(servers.now)]
    (here,) = [each for each in sent if isinstance(each, Heartbeat)]
    assert here.leads == ((BUCKET, 1),) and here.host == "host a"


def test_a_server_keeps_nothing_of_others_that_have_long_said_nothing() -> None:
    neighbours, copying = (
        PeerActivity({"old": 1.0, "new": 9.8}, {"old": 1.0, "new": 9.9}),
        ReplicationSettings(),
    )
    keeper = ReplicaServer("a", "host", "at a", contents, copying, 0.0)
    keeper._activity = neighbours
    keeper.tick(10.0)
    assert neighbours.last_received.keys() == neighbours.last_sent.keys() == {"new"}
