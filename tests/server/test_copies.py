"""Copies of a bucket, one message after the other: what the tables in `server.copies` say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest

from cotswold.optim.updates import Adagrad, Sgd
from cotswold.server.asynchronous import Asynchronous, Room
from cotswold.server.copies.contents import Contents
from cotswold.server.copies.copy import Role
from cotswold.server.copies.copying import Copying
from cotswold.server.copies.keeper import Keeper
from cotswold.server.copies.lease import DRIFT, Lease
from cotswold.server.copies.peers import DEAF, Neighbours, Offer, Peers, is_silent
from cotswold.server.copies.routing import Router
from cotswold.server.messages import (
    CONTROLLERS,
    COORDINATOR,
    Applied,
    Assign,
    Assigned,
    Caught,
    Elsewhere,
    Enclosed,
    Fence,
    Fenced,
    Find,
    Found,
    Group,
    Here,
    Leased,
    OfBucket,
    Order,
    Prepare,
    Prepared,
    PulledNewer,
    PullNewer,
    Send,
    Shard,
    Silent,
    TakeOver,
    Update,
    Write,
    Written,
)
from cotswold.server.shard import Server
from cotswold.server.updating import Updates
from cotswold.simulate.lists import Lent, Lists, ListUpdates

BUCKET = "bucket 0"
SHARDS = [Shard(0, BUCKET, 0, 2, "", 0), Shard(1, BUCKET, 2, 4, "", 0)]


def contents(_: str) -> Contents[list[float]]:
    server = Server(BUCKET, SHARDS, Lists())
    settings = Asynchronous("run", "weights", Sgd(), {"": 2}, 8, room=Room(1000, 1000))
    return Contents(server, Updates(server, settings, Lists(), ListUpdates()), Lists())


def test_a_state_that_was_frozen_is_told_vector_by_vector_whatever_was_written_first() -> None:
    """The sums of squares are written before the weights, and frozen after them."""

    def kept() -> Contents[list[float]]:
        server = Server(BUCKET, SHARDS, Lists())
        settings = Asynchronous("run", "weights", Adagrad(), {"": 2}, 8, room=Room(1000, 1000))
        return Contents(server, Updates(server, settings, Lists(), ListUpdates()), Lists())

    (squares,) = Adagrad().keeps
    primary, secondary = kept(), kept()
    for number, (name, value) in enumerate({squares: 7.0, "weights": 1.0}.items(), 1):
        primary.receive(COORDINATOR, Write(number, name, (0, 1), ((value,) * 2,) * 2))
        primary.stamp()
    primary.receive(COORDINATOR, Order(1, ((1, "r"),), ((1, 1.0),), 1, 0))
    primary.stamp()
    assert primary.updates.frozen is not None, "nobody owes a marker"
    push = Update("run", 1, 1, "gradient", (0,), (0,), 1, 1.0, ((0, 2),), 1, (), ((1.0, 1.0),))
    primary.receive("r", push)
    primary.updates.drain()
    primary.stamp()
    told = primary.since(-1)
    secondary.install(
        Prepare(BUCKET, 1, -1, primary.index, primary.index, told.change, told.names, told.buffers)
    )
    frozen = secondary.updates.frozen
    assert frozen is not None
    assert frozen.vectors == {squares: [[7.0] * 2] * 2, "weights": [[1.0] * 2] * 2}
    assert secondary.vectors == primary.vectors


class House:
    """Servers with names of one letter, between whom messages are carried by hand."""

    def __init__(self, names: str, copying: Copying | None = None) -> None:
        self.now = 100.0
        copying = copying or Copying()
        self.of = {
            name: Keeper(name, f"host {name}", f"at {name}", contents, copying, self.now) for name in names
        }
        self.waiting: list[tuple[str, Send]] = []
        """(sender, message) that nobody has carried."""
        self.prepares: list[tuple[str, str]] = []
        """Who has sent such to whom, of those that were carried."""

    def say(self, name: str, sends: Sequence[Send]) -> None:
        self.waiting += [(name, each) for each in sends]

    def tell(self, name: str, sender: str, message: object) -> None:
        self.say(name, self.of[name].receive(sender, cast(Assign, message), self.now))

    def assign(self, group: Group, names: str = "") -> None:
        for name in names or "".join(self.of):
            self.tell(name, "controller", Assign(1, group))

    def lease(self, name: str, seconds: float = 1000.0) -> None:
        """As if it had asked now."""
        number = self.of[name].lease.ask(self.now)
        self.tell(name, "controller", Leased(1, name, number, seconds))

    def carry(self, *, lost: str = "", cut: str = "") -> list[Send]:
        """Bring everything to servers; what is for others comes back. Nothing passes by ``lost``, nor from
        the first to the second of ``cut``."""
        outside: list[Send] = []
        while self.waiting:
            sender, send = self.waiting.pop(0)
            if sender in lost or send.to in lost or sender + send.to == cut:
                continue
            self.prepares += [(sender, send.to)] * isinstance(send.message, Prepare)
            if send.to in self.of:
                self.tell(send.to, sender, send.message)
            else:
                outside.append(send)
        return [each for each in outside if not isinstance(each.message, Assigned)]

    def ask(self, name: str, sender: str, message: Enclosed) -> None:
        self.tell(name, sender, OfBucket(BUCKET, 1, message))

    def drain(self, name: str) -> None:
        self.say(name, self.of[name].drain(self.now))

    def begin(self, group: Group) -> None:
        """The weights are written, and a session of a client lives."""
        self.assign(group)
        self.lease(group.primary)
        self.ask(group.primary, COORDINATOR, Write(1, "weights", (0, 1), ((0.0, 0.0), (0.0, 0.0))))
        self.ask(group.primary, COORDINATOR, Order(1, ((1, "client"),), ((1, 1.0),), 0, 0))
        self.settle()
        self.carry()

    def settle(self) -> None:
        """Time enough for beats, so that all know what all have."""
        for _ in range(3):
            self.now += 0.2
            for name, keeper in self.of.items():
                self.say(name, keeper.tick(self.now))
            self.kept = self.carry()

    def weights(self, name: str) -> list[list[float]]:
        return self.of[name].copies[BUCKET].contents.vectors["weights"]


def push(number: int, *values: float) -> Update:
    buffers = (tuple(values[:2]), tuple(values[2:]))
    return Update("run", 1, number, "gradient", (0, 1), (0, 0), 1, -1.0, (), 0, (), buffers)


def said(sends: Sequence[Send], kind: type) -> list[object]:
    """Of a kind, of buckets."""
    inner = [each.message.message for each in sends if isinstance(each.message, OfBucket)]
    return [each for each in inner if isinstance(each, kind)]


GROUP = Group(BUCKET, 1, "a", ("b", "c"))


def test_an_update_is_acknowledged_once_all_members_have_it_and_they_have_its_numbers() -> None:
    house = House("abc")
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
    house = House("abc")
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
    house = House("abc")
    house.begin(GROUP)
    house.ask("a", "client", push(1, 1.0, 2.0, 3.0, 4.0))
    house.drain("a")
    house.carry(lost="c")  # b has prepared it, and nobody was told
    house.tell("b", "controller", Fence(1, BUCKET, 2))
    house.tell("c", "controller", Fence(1, BUCKET, 2))
    answers = [each.message for each in house.carry() if isinstance(each.message, Fenced)]
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
    house = House("ab")
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
        isinstance(each, Lent) for each in house.of["b"].copies[BUCKET].contents.vectors["weights"]
    )


def test_what_stays_in_the_memory_of_a_message_for_long_is_copied() -> None:
    house = House("ab")
    house.begin(Group(BUCKET, 1, "a", ("b",)))
    house.ask("a", "client", push(1, 1.0, 2.0, 3.0, 4.0))
    house.drain("a")
    house.carry()
    house.settle()
    rows = house.of["b"].copies[BUCKET].contents.vectors["weights"]
    assert rows == [[1.0, 2.0], [3.0, 4.0]] and all(isinstance(each, Lent) for each in rows)
    for _ in range(4):
        house.settle()
    assert not any(isinstance(each, Lent) for each in rows)


def test_a_primary_whose_lease_is_over_or_which_was_fenced_says_nothing() -> None:
    house = House("abc")
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
    house = House("abc")
    house.begin(GROUP)
    copy = house.of["b"].copies[BUCKET]
    index, change = copy.index, house.of["a"].copies[BUCKET].contents.since(-1)
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
    house = House("abcd")
    house.begin(GROUP)
    house.ask("a", "client", push(1, 1.0, 2.0, 3.0, 4.0))
    house.drain("a")
    house.carry()
    house.assign(Group(BUCKET, 2, "a", ("b", "c"), ("d",)))
    outside = house.carry()
    house.settle()
    caught = [each.message for each in [*outside, *house.kept] if isinstance(each.message, Caught)]
    assert caught and caught[0].learner == "d"
    house.ask("a", "client", push(2, 1.0, 0.0, 0.0, 0.0))
    house.drain("a")
    assert said(house.carry(lost="d"), Applied) == [], "it is waited for from then on"
    house.assign(Group(BUCKET, 3, "a", ("b", "c", "d")))
    house.settle()
    house.settle()
    assert house.weights("d") == house.weights("a") == [[2.0, 2.0], [3.0, 4.0]]


def test_a_primary_that_was_and_a_copy_that_was_left_out_forget_what_they_have() -> None:
    house = House("abc")
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
    assert house.of["a"].copies[BUCKET].role is Role.LEARNER


def test_with_fewer_members_than_wanted_updates_wait_and_pulls_do_not() -> None:
    house = House("abc", Copying(least=2))
    house.begin(GROUP)
    house.assign(Group(BUCKET, 2, "a"))
    house.carry()
    house.ask("a", "client", push(1, 1.0, 2.0, 3.0, 4.0))
    house.drain("a")
    house.ask("a", "client", PullNewer("run", 1, 0, (0,), (-1,)))
    outside = house.carry()
    assert said(outside, Applied) == [] and len(said(outside, PulledNewer)) == 1
    assert house.of["a"].copies[BUCKET].is_waiting
    assert house.of["a"].short() == (1, 1) and house.of["a"].short(lambda name: name != BUCKET) == (0, 0)
    house.assign(Group(BUCKET, 3, "a", (), ("b",)))
    house.settle()
    house.assign(Group(BUCKET, 4, "a", ("b",)))
    house.settle()
    house.drain("a")
    assert len(said(house.carry(), Applied)) == 1 and house.of["a"].short() == (0, 0)


def test_an_answer_that_is_asked_for_again_and_again_is_held_once() -> None:
    house = House("ac", Copying(least=2))
    house.begin(Group(BUCKET, 1, "a", ("c",)))
    house.assign(Group(BUCKET, 2, "a"), "a")  # fewer than there must be
    house.ask("a", COORDINATOR, Order(2, ((1, "client"),), ((1, 1.0),), 0, 0))
    for _ in range(100):
        house.ask("a", "client", PullNewer("run", 1, 2, (0, 1), (-1, -1)))
        house.ask("a", COORDINATOR, Order(2, ((1, "client"),), ((1, 1.0),), 0, 0))
    assert house.carry() == []
    assert len(house.of["a"].copies[BUCKET]._held) == 2
    house.assign(Group(BUCKET, 3, "a", (), ("c",)))
    house.settle()
    house.assign(Group(BUCKET, 4, "a", ("c",)))
    told = house.carry()
    house.settle()
    assert len(said([*told, *house.kept], PulledNewer)) == 1 and not house.of["a"].copies[BUCKET]._held


def test_silence_is_told_to_the_controllers_by_whoever_hears_it() -> None:
    house = House("abc")
    house.begin(GROUP)
    found = []
    for _ in range(8):
        house.now += 0.1
        for name, keeper in house.of.items():
            house.say(name, keeper.tick(house.now))
        found += [each.message for each in house.carry(lost="c") if each.to == CONTROLLERS]
    assert [each.copy for each in found if isinstance(each, Silent)][:1] == ["c"]
    assert not any(isinstance(each, TakeOver) for each in found), "b hears the primary"
    house.now += 1
    house.say("c", house.of["c"].tick(house.now))
    (proposal,) = [each.message for each in house.carry() if isinstance(each.message, TakeOver)]
    assert (proposal.server, proposal.primary, proposal.term) == ("c", "a", 1)


def test_what_a_controller_of_an_epoch_that_is_over_says_counts_for_nothing() -> None:
    house = House("ab")
    house.tell("a", "controller", Assign(5, Group(BUCKET, 1, "a", ("b",))))
    house.tell("a", "another", Assign(4, Group(BUCKET, 2, "b", ("a",))))
    house.tell("a", "another", Fence(4, BUCKET, 9))
    copy = house.of["a"].copies[BUCKET]
    assert copy.group.term == 1 and copy.fence == 1
    number = house.of["a"].lease.ask(house.now)
    house.tell("a", "another", Leased(4, "a", number, 9.0))
    assert not house.of["a"].lease.holds(house.now)


def test_weights_are_written_before_anything_is_applied_and_not_again() -> None:
    house = House("a")
    house.begin(Group(BUCKET, 1, "a"))
    house.ask("a", "client", push(1, 1.0, 2.0, 3.0, 4.0))
    house.drain("a")
    house.ask("a", COORDINATOR, Write(1, "weights", (0, 1), ((0.0, 0.0), (0.0, 0.0))))
    assert len(said(house.carry(), Written)) == 1
    assert house.weights("a") == [[1.0, 2.0], [3.0, 4.0]]


def test_weights_are_written_also_where_an_order_was_heard_before() -> None:
    """The coordinator's orders go to a bucket as soon as it has a primary, whichever others have none yet."""
    house = House("a")
    house.assign(Group(BUCKET, 1, "a"))
    house.lease("a")
    house.ask("a", COORDINATOR, Order(1, ((1, "client"),), ((1, 1.0),), 0, 0))
    house.ask("a", COORDINATOR, Write(1, "weights", (0, 1), ((1.0, 2.0), (3.0, 4.0))))
    assert len(said(house.carry(), Written)) == 1
    assert house.weights("a") == [[1.0, 2.0], [3.0, 4.0]]


def test_a_server_that_leads_nothing_sends_clients_elsewhere() -> None:
    house = House("ab")
    house.assign(Group(BUCKET, 3, "a", ("b",)))
    house.carry()
    house.ask("b", "client", PullNewer("run", 0, 0, (0,), (-1,)))
    assert house.carry() == [Send("client", Elsewhere(BUCKET, 3, "a"))]


def test_a_primary_knows_in_which_term_and_from_when_until_when_it_spoke() -> None:
    house = House("ac")
    house.begin(Group(BUCKET, 1, "a", ("c",)))
    house.ask("a", COORDINATOR, Order(2, ((1, "client"),), ((1, 1.0),), 0, 0))
    copy = house.of["a"].copies[BUCKET]
    before = copy.spoke
    house.now += 0.1
    house.ask("a", COORDINATOR, Order(3, ((1, "client"),), ((1, 1.0),), 0, 0))
    assert copy.spoke == before, "nothing more is committed"
    house.carry()
    term, since, until = copy.spoke
    assert term == 1 and since <= before[2] < until == house.now
    house.now += 0.1
    house.ask("a", COORDINATOR, Order(4, ((1, "client"),), ((1, 1.0),), 0, 0))
    house.carry()
    assert copy.spoke == (1, since, house.now)
    assert house.of["c"].copies[BUCKET].spoke[0] == 0


@pytest.mark.parametrize(("term", "life"), [(1 << 63, 0), (2, 1 << 23), (2, 1 << 64), (2, -1)])
def test_a_group_of_which_the_versions_could_not_be_said_counts_for_nothing(term: int, life: int) -> None:
    house = House("ac")
    house.begin(Group(BUCKET, 1, "a", ("c",)))
    before = house.of["a"].copies[BUCKET].group
    house.assign(Group(BUCKET, term, "a", ("c",), (), life), "a")
    assert house.of["a"].copies[BUCKET].group == before


def test_versions_to_which_none_can_be_added_are_not_prepared() -> None:
    house = House("ac")
    house.begin(Group(BUCKET, 1, "a", ("c",)))
    told = house.of["a"].copies[BUCKET].contents.since(-1)
    takes = house.of["c"].copies[BUCKET].contents.takes
    index = house.of["c"].copies[BUCKET].index + 1

    def prepare(version: int) -> Prepare:
        change = replace(told.change, versions=tuple(version for _ in told.change.versions))
        return Prepare(BUCKET, 1, -1, index, 0, change, told.names, told.buffers)

    assert takes(prepare(5), None) and not takes(prepare(1 << 63), None) and not takes(prepare(-1), None)


# --- chains ---

CHAIN = Copying(way="chain")


def test_a_chain_hands_on_what_is_different_and_each_tells_the_primary() -> None:
    house = House("abcd", CHAIN)
    house.begin(Group(BUCKET, 1, "a", ("b", "c", "d")))
    house.prepares.clear()
    house.ask("a", "client", push(1, 1.0, 2.0, 3.0, 4.0))
    house.drain("a")
    assert len(said(house.carry(), Applied)) == 1
    assert house.prepares == [("a", "b"), ("b", "c"), ("c", "d")]
    house.settle()
    assert house.weights("a") == house.weights("b") == house.weights("c") == house.weights("d")


def test_nothing_is_acknowledged_that_the_end_of_a_chain_lacks_and_a_broken_one_is_gone_round() -> None:
    house = House("abc", CHAIN)
    house.begin(GROUP)
    house.ask("a", "client", push(1, 1.0, 2.0, 3.0, 4.0))
    house.drain("a")
    assert said(house.carry(cut="bc"), Applied) == []
    for _ in range(6):
        house.now += 0.1
        house.say("a", house.of["a"].tick(house.now))
        answers = said(house.carry(cut="bc"), Applied)
    assert len(answers) == 1, "the primary itself has sent it, half a second later"
    house.prepares.clear()
    house.ask("a", "client", push(2, 1.0, 0.0, 0.0, 0.0))
    house.drain("a")
    assert len(said(house.carry(cut="bc"), Applied)) == 1
    assert house.prepares == [("a", "b"), ("a", "c")], "who was late is told directly for a while"
    house.now += CHAIN.direct_seconds
    house.lease("a")
    house.settle()
    house.prepares.clear()
    house.ask("a", "client", push(3, 1.0, 0.0, 0.0, 0.0))
    house.drain("a")
    assert len(said(house.carry(), Applied)) == 1
    assert house.prepares == [("a", "b"), ("b", "c")]


def test_a_secondary_takes_nothing_from_whoever_does_not_come_before_it() -> None:
    house = House("abcd", CHAIN)
    house.begin(Group(BUCKET, 1, "a", ("b", "c"), ("d",)))
    primary, copy = house.of["a"].copies[BUCKET], house.of["b"].copies[BUCKET]
    told = primary.contents.since(-1)
    index = copy.index
    words = (BUCKET, 1, -1, index + 1, index, told.change, told.names, told.buffers)
    for name, sender in (("b", "c"), ("b", "d"), ("b", "x"), ("d", "b"), ("d", "c")):
        house.tell(name, sender, Prepare(*words))
        assert house.waiting == [], f"{name} hears {sender}"
    house.tell("c", "b", Prepare(*words, onward=("b",)))
    assert [(each.to, type(each.message).__name__) for _, each in house.waiting] == [("a", "Prepared")], (
        "it answers the primary, and hands nothing back"
    )


def test_a_learner_hears_from_the_primary_alone() -> None:
    house = House("abcd", CHAIN)
    house.begin(GROUP)
    house.assign(Group(BUCKET, 2, "a", ("b", "c"), ("d",)))
    house.prepares.clear()
    house.carry()
    house.settle()
    assert {sender for sender, to in house.prepares if to == "d"} == {"a"}
    assert house.weights("d") == house.weights("a")


# --- slow links ---


def test_a_server_that_speaks_of_other_buckets_is_not_silent_soon() -> None:
    copying = Copying()
    assert is_silent("b", 10.0, Neighbours({"b": 10.0}), 10.6, copying)
    assert is_silent("b", 10.0, Neighbours(), 10.6, copying)
    assert not is_silent("b", 10.0, Neighbours({"b": 10.5}), 10.6, copying)
    assert is_silent("b", 10.0, Neighbours({"b": 14.0}), 10.1 + DEAF * copying.silent_seconds, copying)


def test_who_answers_late_is_waited_for_longer_before_it_is_sent_all_again() -> None:
    peers = Peers(Copying(), Neighbours())
    peers.regroup(GROUP, 0.0)

    def answer(index: int, now: float) -> None:
        for name in "bc":
            peers.heard(name, Prepared(BUCKET, 1, name, index, False), offer(index), now)

    def offer(index: int) -> Offer:
        return Offer(BUCKET, 1, index, 0, lambda _: contents(BUCKET).since(-1))

    def sent(index: int, now: float) -> int:
        sends = peers.watch(offer(index), now)
        return sum(isinstance(each.message, Prepare) and each.message.change is not None for each in sends)

    answer(0, 0.0)
    peers.tell(offer(1), 1.0)
    assert sent(1, 1.4) == 0
    assert sent(1, 1.6) == 2, "it may have been lost"
    answer(1, 1.9)
    peers.tell(offer(2), 3.0)
    assert sent(2, 3.8) == 0, "the last took long"
    assert sent(2, 4.1) == 2


def test_beats_to_whoever_has_all_are_few_while_its_server_hears_of_other_buckets() -> None:
    neighbours = Neighbours()
    many = [Peers(Copying(), neighbours) for _ in range(10)]
    beats = [0] * len(many)
    offer = Offer(BUCKET, 1, 0, 0, lambda _: contents(BUCKET).since(-1))
    for each in many:
        each.regroup(Group(BUCKET, 1, "a", ("b",)), 0.0)
        each.heard("b", Prepared(BUCKET, 1, "b", 0, False), offer, 0.0)
    for tick in range(200):
        for place, each in enumerate(many):
            beats[place] += len(each.watch(offer, tick / 20))
    assert sum(beats) < 300, "10 s of a beat each 0.1 s, and of each bucket one each 0.5 s"
    assert min(beats) >= 10, "each is heard of"
    newer = Offer(BUCKET, 1, 1, 1, lambda _: contents(BUCKET).since(-1))
    for each in many:
        each["b"].sent = each["b"].has = 1
    assert all(each.watch(newer, 10.2) for each in many), "that it is committed it hears at once"


# --- leases ---


def test_a_lease_counts_from_when_it_was_asked_for_and_a_little_less() -> None:
    lease = Lease()
    first, second = lease.ask(10.0), lease.ask(20.0)
    lease.given(first, 1.0)
    assert lease.holds(10.9) and not lease.holds(11.0)
    assert lease.until == pytest.approx(11 - DRIFT)
    lease.given(second, 1.0)
    assert lease.holds(20.9)
    lease.given(first, 1000.0)  # it comes again, and late
    lease.given(99, 1000.0)  # that was never asked for
    assert not lease.holds(21.0)


# --- routes ---


def test_a_router_asks_where_a_primary_is_that_another_server_has_named() -> None:
    """Whose term it knows from then on: with its group its address does not come."""
    router = Router(["controller"], [BUCKET])
    pull = PullNewer("run", 0, 0, (0,), (-1,))
    router.receive("controller", Found((Group(BUCKET, 4, "a"),), (("a", "at a"),)), 0.0)
    router.send([Send(BUCKET, pull)], 0.1)
    router.receive("a", Elsewhere(BUCKET, 5, "b"), 0.2)
    router.send([Send(BUCKET, pull)], 0.3)  # which "b" does not get: nobody knows where it is
    assert router.tick(0.6) == [Send("controller", Find(((BUCKET, 5),), ("b",)))]
    router.receive("controller", Found((), (("b", "at b"),)), 0.7)
    assert router.addresses["b"] == "at b"
    assert router.tick(1.0) == [Send("controller", Find(((BUCKET, 5),), ()))]


def test_a_router_sends_to_the_primary_and_asks_controllers_where_it_knows_none() -> None:
    router = Router(["controller"], [BUCKET])
    pull = PullNewer("run", 0, 0, (0,), (-1,))
    assert router.send([Send(BUCKET, pull), Send(COORDINATOR, pull)], 0.0) == [Send(COORDINATOR, pull)]
    assert router.tick(0.1) == [Send("controller", Find(((BUCKET, 0),)))]
    assert router.tick(0.2) == [], "it has just asked"
    router.receive("controller", Found((Group(BUCKET, 4, "a"),), (("a", "at a"),)), 0.2)
    assert router.send([Send(BUCKET, pull)], 0.3) == [Send("a", OfBucket(BUCKET, 4, pull))]
    assert router.addresses == {"a": "at a"}
    assert router.receive("a", OfBucket(BUCKET, 4, pull), 0.4) == (BUCKET, pull)
    router.receive("a", Elsewhere(BUCKET, 5, "b"), 0.5)
    router.receive("c", Elsewhere(BUCKET, 3, "c"), 0.5)  # of long ago
    assert router.primary(BUCKET) == "b"
    router.send([Send(BUCKET, pull)], 1.0)
    router.receive("b", Elsewhere(BUCKET, 5, ""), 1.0)
    assert router.tick(1.0) == [Send("controller", Find(((BUCKET, 5),), ("b",)))], "nobody there knows"


def test_a_server_says_what_it_leads_with_each_beat() -> None:
    house = House("a")
    house.begin(Group(BUCKET, 1, "a"))
    house.now += 1
    (here,) = [each.message for each in house.of["a"].tick(house.now) if isinstance(each.message, Here)]
    assert here.leads == ((BUCKET, 1),) and here.host == "host a"
