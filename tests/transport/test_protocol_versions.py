"""Versions of the protocol: endpoints of several releases communicate, or report the reason."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import msgpack
import pytest
from tests.support.transport.endpoints import heard, message, until

from cotswold.host import Token
from cotswold.transport import Endpoint, Lost
from cotswold.transport import protocol_versions as versions_module
from cotswold.transport.frames import DATA, HELLO, head
from cotswold.transport.protocol_versions import OLDEST, PROTOCOL, Versions

TOKEN = Token.new()


class Making:
    """Makes endpoints of other releases."""

    def __init__(self, held: ExitStack, patch: pytest.MonkeyPatch) -> None:
        self._held, self._patch = held, patch

    def __call__(self, name: str, newest: int = PROTOCOL, oldest: int = OLDEST) -> Endpoint:
        with self._patch.context() as patch:
            patch.setattr(versions_module, "PROTOCOL", newest)
            patch.setattr(versions_module, "OLDEST", oldest)
            return self._held.enter_context(Endpoint(TOKEN, name))


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Making]:
    with ExitStack() as held:
        yield Making(held, monkeypatch)


@pytest.mark.parametrize("newer_calls", [True, False])
def test_an_endpoint_of_the_next_version_speaks_with_one_of_this(make: Making, newer_calls: bool) -> None:
    newer, this = make("newer", PROTOCOL + 1), make("this")
    caller, called = (newer, this) if newer_calls else (this, newer)
    caller.connect(called.name, called.address)
    caller.send(called.name, {"number": 1}, [b"abc"])
    assert message(called, caller).header == {"number": 1}
    called.send(caller.name, {"number": 2})
    assert message(caller, called).header == {"number": 2}
    assert newer.version_of("this") == this.version_of("newer") == PROTOCOL
    assert not newer.rejections.total() and not this.rejections.total()


def test_two_of_the_next_version_speak_that(make: Making) -> None:
    one, other = make("one", PROTOCOL + 1), make("other", PROTOCOL + 1)
    one.connect("other", other.address)
    one.send("other", {})
    assert message(other, one).sender == "one"
    assert one.version_of("other") == PROTOCOL + 1
    assert not other.rejections.total()


@pytest.mark.parametrize("newer_calls", [True, False])
def test_where_this_version_is_not_spoken_any_more_both_are_named(make: Making, newer_calls: bool) -> None:
    newer, this = make("newer", PROTOCOL + 1, PROTOCOL + 1), make("this")
    caller, called = (newer, this) if newer_calls else (this, newer)
    caller.connect(called.name, called.address)
    caller.send(called.name, {"is": "not read"})
    lost = heard(caller, called)
    assert isinstance(lost, Lost) and lost.peer == called.name
    theirs, own, older = (
        (PROTOCOL, PROTOCOL + 1, "it") if newer_calls else (PROTOCOL + 1, PROTOCOL, "this process")
    )
    assert lost.why == (
        f"it speaks version {theirs} of Cotswold's protocol, and this process {own}; upgrade {older}"
    )
    assert called.receive(0.1) is None
    assert caller.rejections["version"] == called.rejections["version"] == 1
    assert caller.peers == called.peers == ()


def test_a_message_of_a_version_that_is_not_spoken_ends_the_conversation(make: Making) -> None:
    one, other = make("one"), make("other")
    one.connect("other", other.address)
    one.send("other", {})
    assert message(other, one).sender == "one"
    raw = one._peers.of["other"].connection.socket
    raw.send(head(DATA, PROTOCOL + 1) + msgpack.packb([{}, []]))
    lost = heard(other, one)
    assert isinstance(lost, Lost) and f"speaks version {PROTOCOL + 1} " in lost.why
    lost = heard(one, other)
    assert isinstance(lost, Lost) and "another version of Cotswold's protocol" in lost.why
    assert other.rejections["version"] == 1 and other.rejections["malformed"] == 0


def test_a_hello_of_another_form_is_answered_by_the_versions_that_are_spoken(make: Making) -> None:
    one, other = make("one"), make("other")
    one.connect("other", other.address)
    one.send("other", {})
    assert message(other, one).sender == "one"
    raw = one._peers.of["other"].connection.socket
    raw.send(head(HELLO, 200) + msgpack.packb(["another", "form"]))
    until(lambda: other.rejections["version"] == 1, other)
    lost = heard(one, other)
    assert isinstance(lost, Lost) and "another version" in lost.why


def test_whatever_a_hello_says_of_versions_is_refused_or_settled() -> None:
    ours = Versions(5, 3)
    assert ours.agreed(Versions(9, 4)) == 5 and ours.agreed(Versions(4, 1)) == 4
    assert ours.agreed(Versions(9, 6)) is None and ours.agreed(Versions(2, 0)) is None
    for oldest in (-1, 8, "x", None, True, 1 << 70):
        assert Versions.from_hello(7, oldest) == Versions(7, 7)
    assert Versions.from_hello(7, 2) == Versions(7, 2)
