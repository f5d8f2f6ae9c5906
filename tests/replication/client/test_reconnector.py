"""Peers that are called repeatedly, and peers whose network is down."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cotswold.errors import MachineError, UserError
from cotswold.host import Token
from cotswold.processes.endpoint_settings import EndpointSettings
from cotswold.replication.client.client_names import ClientNames, scoped
from cotswold.replication.client.endpoints import ClusterEndpoints
from cotswold.replication.client.standalone_cluster import controllers_at, parse_controller
from cotswold.replication.runtime.authorization import rejection_reason
from cotswold.transport import Endpoint
from cotswold.wire import Heartbeat
from cotswold.wire.messenger import Reconnector
from lib.fuzz.parameter_server import ADDRESS


def test_a_peer_whose_network_is_down_is_passed_over() -> None:
    with Endpoint(Token.new(), "a") as a, Endpoint(a_token := Token.new(), "b", host="127.0.0.1") as b:
        assert a_token
        there = b.address

        def way(address: str) -> Endpoint:
            if address != there:
                raise MachineError("there is no way to it")
            return a

        Reconnector(way).connect({"gone": "elsewhere", "b": there, "unknown": ""})
        assert list(a.peers) == ["b"]


def test_an_address_at_which_nobody_can_be_called_is_counted_and_others_are_called() -> None:
    token = Token.new()
    with Endpoint(token, "a") as a, Endpoint(token, "b") as b:
        elsewhere = "host 1 challenge ipc:///tmp/nowhere - hmac"
        Reconnector(lambda address: a).connect({"lost": elsewhere, "none": "no address", "b": b.address})
        assert list(a.peers) == ["b"] and a.rejections["malformed"] == 2


@pytest.mark.parametrize("where", ["- -", "- tcp://foo", "- tcp://:1", "ipc:///tmp/nowhere -"])
def test_a_controller_hears_of_no_server_that_it_cannot_call(where: str) -> None:
    address, known = f"host 1 challenge {where} hmac", ADDRESS
    for here in (
        Heartbeat("server-a-9", "host", address, 1, ()),
        Heartbeat("server-a-9", "host", known, 1, (), (), address),
    ):
        assert rejection_reason("server-a-9", here) == "malformed"
    assert rejection_reason("server-a-9", Heartbeat("server-a-9", "host", known, 1, (), (), known)) == ""


def test_a_client_has_an_endpoint_for_each_network_on_which_it_calls_somebody() -> None:
    token = Token.new()
    outward = ClusterEndpoints("replica-1", "run7", EndpointSettings(), token)
    networks = outward.networks(Endpoint(Token.new(), "replica-1"))
    try:
        (address,) = controllers_at(["127.0.0.1:7400"]).values()
        (other,) = controllers_at(["127.0.0.1:7401"]).values()
        assert outward.endpoint_to(address) is outward.endpoint_to(other)
        assert outward.endpoint_to(address).name == "replica-1.run7"
        assert len(networks.networks) == 2
    finally:
        networks.close()


def test_a_client_of_another_run_is_a_stranger() -> None:
    clients = ClientNames()
    sender = scoped("coordinator", "run7")
    assert clients.name(sender, "run7") == "coordinator"
    assert clients.peer("coordinator", "run7") == sender
    assert clients.name(sender, "run8") == sender and clients.peer("coordinator", "run8") == "coordinator"
    clients.forget("run7")
    assert clients.peer("coordinator", "run7") == "coordinator"


@pytest.mark.parametrize("text", ["", "10.0.0.1:", "10.0.0.1:99999", ":7400", "10.0.0.1:http"])
def test_a_text_that_names_no_controller_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is no controller"):
        parse_controller(text)


def test_a_controller_may_be_named_without_its_port() -> None:
    assert parse_controller("a.example") == ("a.example", 7400)
    assert parse_controller("[::1]:7401") == ("::1", 7401) and parse_controller("[::1]") == ("::1", 7400)


def test_names_that_were_called_long_ago_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("cotswold.wire.messenger.time.monotonic", lambda: now)
    called: list[str] = []
    endpoint = SimpleNamespace(has=lambda name: False, connect=lambda name, address: called.append(name))
    calling = Reconnector(lambda address: endpoint)  # type: ignore[arg-type, return-value]  # a stand-in
    for number in range(1000):
        now += 1.0
        calling.connect({f"server-a-0.{number}": "somewhere"})
    assert len(called) == 1000 and len(calling._called_at) <= 256
    calling.connect({"server-a-0.999": "somewhere"})
    assert len(called) == 1000, "it was called a moment ago"
