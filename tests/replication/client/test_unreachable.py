"""Controllers that do not answer an operator: another token or name, no process, a hanging process."""

from __future__ import annotations

import re
import socket

import pytest
from tests.ports import free_ports
from tests.support.replication.scripted_controllers import controllers, seen

from cotswold.errors import MachineError
from cotswold.host import Token
from cotswold.replication.client.admin import AdminClient
from cotswold.replication.client.standalone_cluster import addresses_by_name, controller_name
from cotswold.replication.client.unreachable import unreachable_text
from cotswold.transport import Endpoint, LossCause, Lost
from cotswold.transport import outgoing as connection
from cotswold.transport.address import Address
from cotswold.wire import Message, NotLeader
from cotswold.wire.messenger import AnyMessage

SECONDS = 1.5


def complaint(port: int, token: Token, host: str = "127.0.0.1") -> str:
    operator = AdminClient([f"{host}:{port}"], token, wait_seconds=SECONDS)
    with operator, pytest.raises(MachineError) as raised:
        operator.status()
    return str(raised.value)


def test_an_operator_with_another_token_is_told_that_somebody_is_there_and_refuses_it() -> None:
    with (
        free_ports(1) as (port,),
        Endpoint(
            Token.new(), controller_name("127.0.0.1", port), host="127.0.0.1", ports=(port,), mode="curve"
        ) as controller,
    ):
        said = complaint(port, Token.new())
        controller.receive(0.1)
        assert controller.rejections["strangers"]
    assert re.search(f"at 127.0.0.1:{port} a process refuses this token: give the .*--token-file", said)
    assert "no process listens" not in said


def test_an_operator_who_finds_nobody_is_told_that_nobody_listens() -> None:
    with free_ports(1) as (port,):
        said = complaint(port, Token.new())
    assert re.search(
        f"at 127.0.0.1:{port} no process listens: check that cotswold cluster start runs there", said
    )
    assert "refuses" not in said


def test_a_controller_that_is_named_otherwise_than_on_its_host_is_not_taken_for_absent() -> None:
    token = Token.new()
    with free_ports(1) as (port,), controllers(token, [port], lambda name, message: []):
        said = complaint(port, token, "localhost")
    assert f"at localhost:{port} a process knows the token and has another name" in said
    assert "no process listens" not in said


def test_a_call_that_ended_otherwise_is_said_to_have_ended_so() -> None:
    places = addresses_by_name(["10.0.0.1", "10.0.0.2"])
    first, second = places
    said = unreachable_text(
        places, {first: Lost(first, "it speaks {} version 2"), second: Lost(second, "it left")}
    )
    assert said == (
        "the connection to 10.0.0.1:7400 has ended: it speaks {} version 2; "
        "the connection to 10.0.0.2:7400 has ended: it left"
    )


def test_a_controller_that_takes_calls_and_says_nothing_is_not_taken_for_one_with_another_token() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        port = stopped.getsockname()[1]
        said = complaint(port, Token.new())
    assert f"from 127.0.0.1:{port} no reply arrives" in said and "refuses" not in said


def test_nor_is_it_where_the_handshake_runs_out_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_HANDSHAKE_SECONDS", 0.6)
    monkeypatch.setattr(connection, "_PROMPT_SECONDS", 0.3)
    with (
        socket.create_server(("127.0.0.1", 0)) as stopped,
        Endpoint(Token.new(), "caller", host="127.0.0.1", ports=(), mode="curve") as caller,
    ):
        caller.connect("controller", str(Address.of_port("127.0.0.1", stopped.getsockname()[1])))
        lost = caller.receive(5.0)
    assert isinstance(lost, Lost) and lost.end is LossCause.SILENT, lost


def test_where_one_controller_follows_it_is_said_what_is_known_of_the_others() -> None:
    token = Token.new()
    with (
        free_ports(3) as (follows, refuses, away),
        controllers(token, [follows], lambda name, message: [NotLeader(1, "")]),
        controllers(Token.new(), [refuses], lambda name, message: []),
        AdminClient(
            [f"127.0.0.1:{port}" for port in (follows, refuses, away)], token, wait_seconds=2 * SECONDS
        ) as operator,
        pytest.raises(MachineError) as raised,
    ):
        operator.status()
    said = str(raised.value)
    assert f": {controller_name('127.0.0.1', follows)} answered, and none leads: name all controllers" in said
    assert f"at 127.0.0.1:{refuses} a process refuses this token" in said
    assert f"at 127.0.0.1:{away} no process listens" in said and "no reply arrives" not in said


def test_that_a_controller_followed_long_ago_is_not_said_of_a_cluster_that_is_gone() -> None:
    token, asked = Token.new(), list[str]()

    def answers(name: str, message: AnyMessage) -> list[Message]:
        asked.append(name)
        return [NotLeader(1, "")] if len(asked) == 1 else [seen(message)]

    with (
        free_ports(1) as (port,),
        AdminClient([f"127.0.0.1:{port}"], token, wait_seconds=SECONDS) as operator,
    ):
        with controllers(token, [port], answers):
            operator.status()
        assert len(asked) > 1
        with pytest.raises(MachineError, match=f"at 127.0.0.1:{port} no process listens"):
            operator.status()
