"""The interface given to Gloo, and the addresses of a store."""

from __future__ import annotations

import errno
import socket
import sys

import pytest

from cotswold.host import address_for_peers, address_towards, interface_to, listener_at, server_address
from cotswold.host import network as interface

linux = pytest.mark.skipif(sys.platform != "linux", reason="the system does not say")
OUTSIDE = "10.9.8.7"
"""An address that a host may have; nothing is sent to it."""


@linux
def test_the_loopback_leads_to_this_host() -> None:
    assert interface_to("127.0.0.1", several_hosts=False) == "lo"
    assert interface_to("127.0.1.1", several_hosts=False) == "lo"


@linux
def test_the_loopback_never_leads_to_other_hosts() -> None:
    assert interface_to("127.0.0.1", several_hosts=True) != "lo"


@linux
def test_a_host_that_nobody_knows_has_none() -> None:
    assert interface_to("no.such.host.invalid", several_hosts=False) in {
        None,
        *(name for _, name in socket.if_nameindex() if name != "lo"),
    }


@pytest.mark.parametrize("name", ["a..b", "a" * 70])
def test_what_cannot_be_a_name_is_one_that_nobody_knows(name: str) -> None:
    assert interface_to(name, several_hosts=False) == interface_to(
        "no.such.host.invalid", several_hosts=False
    )
    assert server_address(name, several_hosts=True, interface=None) == name
    with pytest.raises(OSError, match="its host name cannot be resolved"):
        listener_at(name, 0, interface=None)


def test_a_store_listens_at_the_address_of_its_host_and_at_no_other() -> None:
    with listener_at("127.0.0.1", 0, interface=None) as listener:
        host, port = listener.getsockname()
        assert host == "127.0.0.1"
        if sys.platform == "linux":  # all of 127.0.0.0/8 is there, and would answer if it listened everywhere
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", port), 5)


def test_a_port_that_is_taken_is_told_as_such() -> None:
    with listener_at("127.0.0.1", 0, interface=None) as listener, pytest.raises(OSError) as raised:
        listener_at("127.0.0.1", listener.getsockname()[1], interface=None)
    assert raised.value.errno == errno.EADDRINUSE


@linux
def test_an_address_that_is_translated_on_the_way_means_the_named_interface() -> None:
    with listener_at("203.0.113.7", 0, interface="lo") as listener:  # RFC 5737: nobody's
        assert listener.getsockname()[0] == "127.0.0.1"


def test_a_name_that_nobody_knows_is_no_translated_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interface, "_addresses", lambda host: [])
    monkeypatch.setattr(interface, "_address_to_others", lambda name: "127.0.0.1")
    with pytest.raises(OSError, match="host name cannot be resolved"):
        listener_at("no.such.host.invalid", 0, interface=None)


@linux
def test_where_there_is_no_such_address_nothing_listens() -> None:
    with pytest.raises(OSError) as raised:
        listener_at("203.0.113.7", 0, interface="nothing0")
    assert raised.value.errno == errno.EADDRNOTAVAIL


def test_a_name_that_leads_to_the_loopback_is_not_told_to_other_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(interface, "_addresses", lambda host: ["127.0.1.1"])
    monkeypatch.setattr(interface, "_address_to_others", lambda name: OUTSIDE)
    assert server_address("mine", several_hosts=True, interface=None) == OUTSIDE
    assert server_address("mine", several_hosts=False, interface=None) == "mine"
    monkeypatch.setattr(interface, "_addresses", lambda host: [OUTSIDE])
    assert server_address("mine", several_hosts=True, interface=None) == "mine"


def test_a_name_that_leads_to_the_loopback_and_elsewhere_is_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[str] = []

    def create_server(address: tuple[str, int], **_: object) -> socket.socket:
        tried.append(address[0])
        return socket.socket()

    monkeypatch.setattr(interface, "_addresses", lambda host: ["127.0.1.1", OUTSIDE])
    monkeypatch.setattr(socket, "create_server", create_server)
    listener_at("mine", 0, interface=None).close()
    assert tried == [OUTSIDE]


def test_peers_are_told_the_address_of_the_named_interface_or_of_the_way_to_the_master(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ways = {"master": "127.0.0.1", interface._EXTERNAL_ADDRESS: OUTSIDE}
    monkeypatch.setattr(interface, "_source_address", lambda target: ways.get(target, ""))
    monkeypatch.setattr(interface, "_address_of", {"eth7": "203.0.113.9"}.get)
    assert address_for_peers({"GLOO_SOCKET_IFNAME": "eth7,eth8", "MASTER_ADDR": "master"}) == "203.0.113.9"
    assert address_for_peers({"MASTER_ADDR": "master"}) == OUTSIDE, "its own name may lead to the loopback"
    assert address_for_peers({}) == OUTSIDE
    for here in ("localhost", "127.0.0.1", "::1"):
        assert address_for_peers({"MASTER_ADDR": here}) == "127.0.0.1", "nobody else can be there"
    ways[interface._EXTERNAL_ADDRESS] = ""
    assert address_for_peers({"MASTER_ADDR": "master"}) == "127.0.0.1"
    assert address_for_peers({}) is None


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_the_way_to_an_ipv6_address_is_found() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    assert address_towards("::1") == "::1"
    assert address_towards("127.0.0.1") == "127.0.0.1"
