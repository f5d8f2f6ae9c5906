"""The address chosen for a host name."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from cotswold.errors import UserError
from cotswold.transport.host_names import address_of, local_address_of

_NOBODY = "192.0.2.1"
"""An address that no machine has (RFC 5737)."""


@pytest.fixture
def lead(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes every name resolve to these addresses."""

    def to(*addresses: str) -> None:
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 0)) for each in addresses]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)

    return to


def test_of_several_addresses_the_one_that_answers_is_taken(
    lead: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        called = []

        def connect(place: tuple[str, int], *_: object) -> socket.socket:
            called.append(place)
            if place != ("127.0.0.1", port):
                raise ConnectionRefusedError
            return socket.socket()

        monkeypatch.setattr(socket, "create_connection", connect)
        lead("127.0.0.9", "127.0.0.1")
        assert address_of("a", port) == "127.0.0.1"
        assert called == [("127.0.0.9", port), ("127.0.0.1", port)]


def test_an_only_address_is_taken_unasked_and_the_first_where_none_answers(
    lead: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*_: object) -> socket.socket:
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", connect)
    lead(_NOBODY)
    assert address_of("a", 1) == _NOBODY
    lead(_NOBODY, "127.0.0.1")
    assert address_of("a", 1) == _NOBODY


def test_whoever_listens_takes_an_address_that_this_machine_has(lead: Callable[..., None]) -> None:
    lead(_NOBODY, "127.0.0.1")
    assert local_address_of("a") == "127.0.0.1"


def test_a_name_that_leads_nowhere_is_a_mistake_of_the_callers() -> None:
    with pytest.raises(UserError, match=r"the host name 'a\.\.b' cannot be resolved; give an IP address"):
        address_of("a..b", 1)
