"""A caller proves its name by a key that the token does not give."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import pytest
from tests.support.transport.endpoints import connected, heard, message, until

from cotswold.host import Token
from cotswold.transport import Endpoint, Lost
from cotswold.transport.address import Address
from cotswold.transport.frames import MalformedFrameError, pack, unpack
from cotswold.transport.handshake import Hello
from cotswold.transport.names import is_proof, pair_key, proof

TOKEN, KEY = Token.new(), "a key by chance"


class Make(Protocol):
    def __call__(self, name: str, key: str = "") -> Endpoint: ...


@pytest.fixture(params=["unix", "hmac", "curve"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Yield a maker of endpoints over a Unix socket, or over TCP as if on separate hosts."""
    settings: dict[str, Any] = {} if request.param == "unix" else {"host": "127.0.0.1", "mode": request.param}
    if settings:
        monkeypatch.setattr(Address, "is_local", property(lambda _: False))
    with ExitStack() as held:

        def one(name: str, key: str = "") -> Endpoint:
            endpoint = held.enter_context(Endpoint(TOKEN, name, **settings))
            endpoint.key = key
            return endpoint

        yield one


def test_a_caller_gets_a_protected_name_only_with_its_key(make: Make) -> None:
    one = make("one")
    one.require_proof("server", pair_key(KEY, "one"))
    for key in ("", "a guess"):
        impostor = make("server", key)
        impostor.connect("one", one.address)
        impostor.send("one", {"says": "the impostor"})
        assert isinstance(heard(impostor, one), Lost), "it is refused"
    assert one.rejections["strangers"] == 2
    server = make("server", KEY)
    connected(server, one)
    one.require_proof("server", "")
    server.close()
    assert isinstance(heard(one), Lost)
    connected(make("server"), one)


def test_a_connected_caller_without_proof_is_dropped_once_its_name_is_protected(make: Make) -> None:
    one, impostor, server = make("one"), make("server"), make("server-2", KEY)
    connected(impostor, one)
    connected(server, one)
    one.require_proof("server", pair_key(KEY, "one"))
    one.require_proof("server-2", pair_key(KEY, "one"))
    assert isinstance(heard(one, impostor), Lost)
    assert isinstance(heard(impostor, one), Lost)
    server.send("one", {"says": "the true one"})
    assert message(one, server).header == {"says": "the true one"}


def test_a_called_process_proves_its_name_too(make: Make) -> None:
    one, server = make("one"), make("server", KEY)
    one.require_proof("server", pair_key(KEY, "one"))
    connected(one, server)


def test_a_proof_serves_for_one_pair_and_one_call() -> None:
    pair = pair_key(KEY, "one")
    said = proof(pair, "nonce", "server", "address")
    assert is_proof(pair, said, "nonce", "server", "address")
    assert not is_proof(pair_key(KEY, "another"), said, "nonce", "server", "address")
    assert not is_proof(pair, said, "another", "server", "address")
    assert not is_proof(pair, said, "nonce", "another", "address")
    assert not is_proof(pair, said, "nonce", "server", "another")


def test_whoever_repeats_the_address_of_a_peer_that_is_kept_does_not_take_its_place(make: Make) -> None:
    one, true, false = make("one"), make("true"), make("true")
    one.reserve_name("true")
    connected(one, true)
    false._address = Address.parsed(true.address)
    false.connect("one", one.address)
    until(lambda: one.rejections["strangers"] == 1, one)
    true.send("one", {"says": "the true one"})
    assert message(one, true).header == {"says": "the true one"}


def test_while_a_peer_does_not_answer_nobody_else_answers_for_it(make: Make) -> None:
    one, false = make("one"), make("true")
    one.accept_only_answers_of("true")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address.of_port("127.0.0.1", silent.getsockname()[1])
        one.connect("true", str(address))
        false._address = address
        false.connect("one", one.address)
        until(lambda: one.rejections["strangers"] == 1, one)
        one.drop("true")
        false.drop("one")


def test_an_endpoint_that_admits_answers_alone_is_called_by_nobody_first(make: Make) -> None:
    one, other, stranger = make("one"), make("other"), make("stranger")
    one.accept_only_answers()
    stranger.connect("one", one.address)
    assert isinstance(heard(stranger, one), Lost) and one.rejections["strangers"] == 1
    connected(one, other)


def test_a_greeting_may_have_fields_that_are_not_known_and_lacks_none(make: Make) -> None:
    said = unpack(Hello("server", Address.parsed(make("x").address), "nonce", "one", -1).packed)
    assert isinstance(said, dict)
    assert Hello.read(pack({**said, "more": 1})).name == "server"
    del said["proof"]
    with pytest.raises(MalformedFrameError, match="no hello"):
        Hello.read(pack(said))
