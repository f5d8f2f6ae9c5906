"""A token is changed while endpoints exchange messages: connections, refusals, and no silent loss."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from select import select
from typing import Any, Protocol

import pytest
from tests.ports import free_ports
from tests.support.transport.endpoints import SECONDS, connected, heard, message, until

from cotswold.errors import MachineError
from cotswold.host import Keyring, Token
from cotswold.transport import Endpoint, Lost, Message
from cotswold.transport.address import Address

OLD, NEW, OTHER = Token.new(), Token.new(), Token.new()
STEPS = ((OLD,), (OLD, NEW), (NEW, OLD), (NEW,))
"""The keyrings of a machine, from the first day to the last."""


class Make(Protocol):
    def __call__(self, name: str, *tokens: Token, **more: Any) -> Endpoint: ...


@pytest.fixture(params=["unix", "hmac", "curve"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the transport; except for the first, endpoints treat each other as on other hosts."""
    if request.param != "unix":
        monkeypatch.setattr(Address, "is_local", property(lambda _: False))
    return str(request.param)


@pytest.fixture
def make(way: str) -> Iterator[Make]:
    """Yield a maker of endpoints with this transport."""
    settings: dict[str, Any] = {} if way == "unix" else {"host": "127.0.0.1", "mode": way}
    with ExitStack() as held:

        def one(name: str, *tokens: Token, **more: Any) -> Endpoint:
            return held.enter_context(Endpoint(Keyring(tokens), name, **settings, **more))

        yield one


class Talk:
    """Endpoints that send each other numbers, and reconnect after every loss."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self.endpoints = {each.name: each for each in endpoints}
        self.losses: Counter[tuple[str, str]] = Counter()
        """Losses by (endpoint, lost peer)."""
        self.sent: dict[tuple[str, str, int], int] = {}
        """Numbers sent by sender, receiver, and the sender's earlier losses of the receiver."""
        self.came: dict[tuple[str, str, int], list[int]] = {}

    def go_on(self, rounds: int) -> None:
        """Send from every endpoint to every other several times, and receive."""
        for _ in range(rounds):
            for name, endpoint in self.endpoints.items():
                for other in self.endpoints.keys() - {name}:
                    self._say(endpoint, other)
                while (event := endpoint.receive(0.002)) is not None:
                    self._hear(name, event)

    def settle(self) -> None:
        """Exchange messages between all endpoints without a loss, until all have arrived."""
        deadline = time.monotonic() + SECONDS
        before = self.losses.copy()
        self.go_on(5)
        while not all(self._is_whole(one, other) for one in self.endpoints for other in self.endpoints):
            assert time.monotonic() < deadline, (self.losses - before, self.sent, self.came)
            self.go_on(1)

    def judge(self) -> None:
        """Check that each conversation received a prefix of its messages, in order and once."""
        for key, numbers in self.came.items():
            assert numbers == list(range(len(numbers))), key
            assert len(numbers) <= self.sent[key]

    def _is_whole(self, one: str, other: str) -> bool:
        key = one, other, self.losses[one, other]
        return one == other or 0 < self.sent.get(key, 0) <= len(self.came.get(key, [])) + 2

    def _say(self, endpoint: Endpoint, other: str) -> None:
        endpoint.connect(other, self.endpoints[other].address)
        key = endpoint.name, other, self.losses[endpoint.name, other]
        number = self.sent.get(key, 0)
        if endpoint.send(other, {"loss": key[2], "number": number}, [b"x" * 1000]):
            self.sent[key] = number + 1

    def _hear(self, name: str, event: object) -> None:
        if isinstance(event, Lost):
            self.losses[name, event.peer] += 1
            return
        assert isinstance(event, Message)
        header: Any = event.header
        self.came.setdefault((event.sender, name, header["loss"]), []).append(header["number"])


def test_three_that_rotate_one_after_the_other_speak_before_meanwhile_and_afterwards(
    make: Make, way: str
) -> None:
    talk = Talk([make(name, OLD) for name in ("a", "b", "c")])
    talk.settle()
    for ring in STEPS[1:]:
        for endpoint in talk.endpoints.values():
            lost = talk.losses.total()
            endpoint.rotate(Keyring(ring))
            talk.go_on(3)
            talk.settle()
            talk.judge()
            if OLD in ring:
                assert talk.losses.total() == lost, "only where a token is removed connections end"
    assert talk.losses.total() > 0
    assert all(endpoint.address.endswith(NEW.fingerprint) for endpoint in talk.endpoints.values())
    with pytest.raises(AssertionError):
        connected(make("stranger", OLD), talk.endpoints["a"])


def test_a_rotation_all_at_once_is_survived_as_well(make: Make) -> None:
    talk = Talk([make(name, OLD) for name in ("a", "b")])
    talk.settle()
    for endpoint in talk.endpoints.values():
        endpoint.rotate(Keyring((NEW,)))
    talk.settle()
    talk.judge()
    for name, other in (("a", "b"), ("b", "a")):
        assert talk.losses[name, other] >= 1


def test_who_has_a_token_that_was_removed_is_refused_and_what_it_had_open_ends(make: Make) -> None:
    one, thief = make("one", OLD, NEW), make("thief", OLD)
    connected(thief, one)
    old_address = one.address
    one.rotate(Keyring((NEW,)))
    lost = heard(one, thief)
    assert isinstance(lost, Lost) and "not in use any more" in lost.why
    assert isinstance(heard(thief, one), Lost)
    for address in (old_address, one.address):
        thief.connect("one", address)
        thief.send("one", {"let": "me in"})
        assert isinstance(heard(thief, one), Lost)
    assert one.peers == ()
    connected(make("friend", NEW), one)


def until_connected(one: Endpoint, other: Endpoint) -> None:
    """Connect as often as necessary, and send a message."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        one.connect(other.name, other.address)
        one.send(other.name, {"there": 1})
        for each in (other, one):
            event = each.receive(0.05)
            if isinstance(event, Message) and event.header == {"there": 1}:
                return
    raise AssertionError(f"{one.name} does not reach {other.name}")


def test_an_owner_who_connects_to_a_new_address_keeps_the_connection_that_stands(make: Make) -> None:
    one, other = make("one", OLD, NEW), make("other", OLD, NEW)
    connected(one, other)
    before = other.address
    other.rotate(Keyring((NEW, OLD)))
    assert other.address != before
    for address in (other.address, before, other.address):
        one.connect("other", address)
    one.send("other", {"still": "here"})
    assert message(other, one).header == {"still": "here"}


def test_an_endpoint_that_calls_back_from_a_new_address_is_the_one_that_was_called(make: Make) -> None:
    one, other = make("one", OLD, NEW), make("other", OLD, NEW)
    one.connect("other", other.address)
    one.send("other", {"hello": 1})
    other.rotate(Keyring((NEW, OLD)))
    assert message(other, one).header == {"hello": 1}
    other.send("one", {"hello": 2})
    assert message(one, other).header == {"hello": 2}


def test_a_connection_to_here_ends_with_its_token_though_the_one_back_was_made_with_another(
    make: Make,
) -> None:
    one, friend = make("one", OLD, NEW), make("friend", NEW, OLD)
    connected(friend, one)  # by the address of the one, and back by that of the friend
    one.rotate(Keyring((NEW,)))
    lost = heard(one, friend)
    assert isinstance(lost, Lost) and "not in use any more" in lost.why
    assert isinstance(heard(friend, one), Lost)
    connected(friend, one)


def test_the_ring_of_an_endpoint_is_changed_at_no_cost_where_it_is_the_same(make: Make) -> None:
    one = make("one", OLD, NEW)
    before = one.address
    for _ in range(3):
        one.rotate(Keyring((OLD, NEW)))
    assert one.address == before


def test_a_caller_finds_the_token_of_an_address_and_tries_all_where_it_says_none(
    make: Make, way: str
) -> None:
    first = [NEW] if way == "curve" else []  # by which it is called back: there one must know the first
    one = make("one", OLD, *first)
    connected(make("by-fingerprint", *first, OTHER, OLD), one)
    assert one.rejections["strangers"] == 0
    without = " ".join(one.address.split(" ")[:6])
    assert Address.parsed(without).fingerprint == ""
    caller = make("in-turn", *first, OTHER, OLD)
    caller.connect("one", without)
    caller.send("one", {"hello": 1}, [b"kept"])
    assert message(one, caller).sender == "in-turn"
    until(lambda: one.rejections["strangers"] > 0, one, caller)
    none = make("none", OTHER, Token.new())
    none.connect("one", without)
    lost = heard(none, one)
    assert isinstance(lost, Lost) and lost.why == "it refused all 2 tokens of this process"


@pytest.mark.parametrize("way", ["curve"], indirect=True)
class TestPorts:
    """With *curve*, a port has the keys of one token."""

    def test_at_a_port_that_all_know_the_first_token_listens(self, make: Make) -> None:
        with free_ports(1) as (port,):
            one = make("one", OLD, ports=[port])
            known = str(Address.of_port("127.0.0.1", port))
            for ring in STEPS[1:]:
                one.rotate(Keyring(ring))
                assert one.port_address == f"127.0.0.1:{port}"
                for number, tokens in enumerate((ring, (NEW, OLD), (OLD, NEW))[: 1 + len(ring)]):
                    caller = make(f"caller-{ring[0].fingerprint}-{len(ring)}-{number}", *tokens)
                    caller.connect("one", known)
                    caller.send("one", {"hello": number})
                    assert message(one, caller).header == {"hello": number}
                    one.send(caller.name, {"back": number})
                    assert message(caller, one).header == {"back": number}
                    caller.close()
                    assert isinstance(heard(one), Lost)

    def test_the_connections_through_a_port_that_changes_its_token_end_and_come_again(
        self, make: Make
    ) -> None:
        with free_ports(1) as (port,):
            one, caller = make("one", OLD, NEW, ports=[port]), make("caller", OLD, NEW)
            known = str(Address.of_port("127.0.0.1", port))
            caller.connect("one", known)
            caller.send("one", {"before": 1})
            assert message(one, caller).header == {"before": 1}
            caller.send("one", {"before": 2})
            caller.flush(SECONDS)
            assert one.has_pending() or select([one.fileno()], [], [], SECONDS)[0]
            one.rotate(Keyring((NEW, OLD)))
            events = [heard(one, caller), heard(one, caller)]  # what came before is not lost
            assert isinstance(events[0], Message) and events[0].header == {"before": 2}
            assert isinstance(events[1], Lost)
            assert isinstance(heard(caller, one), Lost)
            caller.connect("one", known)
            caller.send("one", {"after": 1})
            assert message(one, caller).header == {"after": 1}

    def test_of_several_ports_a_free_one_is_taken_and_the_old_one_given_back(self, make: Make) -> None:
        with free_ports(2) as ports:
            one = make("one", OLD, ports=ports)
            assert one.port_address.endswith(str(ports[0]))
            one.rotate(Keyring((NEW, OLD)))
            assert one.port_address.endswith(str(ports[1]))
            one.rotate(Keyring((NEW,)))
            deadline = time.monotonic() + SECONDS
            while True:
                try:
                    other = make("other", OLD, ports=ports)
                except MachineError:
                    assert time.monotonic() < deadline
                else:
                    break
            assert other.port_address.endswith(str(ports[0]))

    def test_where_no_port_is_free_it_stays_reachable_and_tries_again(self, make: Make) -> None:
        with free_ports(2) as ports:
            taken = make("taken", OLD, ports=[ports[0]])
            one, caller = make("one", OLD, ports=ports), make("caller", NEW, OLD)
            for _ in range(2):
                with pytest.raises(MachineError, match="all of its 2 ports"):
                    one.rotate(Keyring((NEW, OLD)))
            assert one.address.endswith(OLD.fingerprint)
            connected(caller, one)
            taken.close()
            deadline = time.monotonic() + SECONDS
            while one.address.endswith(OLD.fingerprint):
                assert time.monotonic() < deadline
                try:
                    one.rotate(Keyring((NEW, OLD)))
                except MachineError:
                    continue
            until_connected(make("newer", NEW), one)

    def test_no_descriptors_are_left_behind(self, make: Make) -> None:
        def count() -> int:
            return len(list(Path("/proc/self/fd").iterdir()))

        one = make("one", OLD)
        counts = list[int]()
        for _ in range(4):
            for ring in (*STEPS[1:], (NEW, OLD), (OLD, NEW), (OLD,)):
                one.rotate(Keyring(ring))
            deadline = time.monotonic() + SECONDS
            while counts and count() > counts[0] and time.monotonic() < deadline:
                one.receive(0.01)  # ZeroMQ closes them in a thread of its own
            counts.append(count())
        assert max(counts[1:]) <= counts[0]


def test_a_peer_that_is_dropped_before_it_has_called_back_stays_dropped(make: Make) -> None:
    one, other = make("one", OLD), make("other", OLD)
    one.connect("other", other.address)
    until(lambda: other.has("one"), other)
    one.drop("other")
    assert isinstance(heard(other, one), Lost)
    until(lambda: one.peers == other.peers == (), one, other)
    assert one.receive(0.1) is None and other.receive(0.1) is None
    assert one.peers == other.peers == ()


def test_who_drops_a_peer_and_connects_again_at_once_is_heard(make: Make) -> None:
    """However hellos and farewells overtake each other, a message arrives or a loss is reported."""
    one, other = make("one", OLD), make("other", OLD)
    connected(one, other)
    for number in range(50):
        one.drop("other")
        one.connect("other", other.address)
        one.send("other", {"number": number})
        deadline, came = time.monotonic() + SECONDS, None
        while came != {"number": number}:
            assert time.monotonic() < deadline, f"the message {number} was lost, and nobody heard of it"
            event = other.receive(0.01)
            came = event.header if isinstance(event, Message) else None
            heard_here = one.receive(0.0)
            if isinstance(heard_here, Lost):
                one.connect("other", other.address)
                one.send("other", {"number": number})
        if number % 2:
            other.send("one", {"back": number})
            assert message(one, other).header == {"back": number}
