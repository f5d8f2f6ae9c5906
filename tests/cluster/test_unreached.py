"""Controllers that do not answer an operator: another token, nobody there, a process that stands still."""

from __future__ import annotations

import json
import re
import socket
import threading

import pytest
from tests.ports import free_ports

from cotswold.cluster.operating import Operator
from cotswold.cluster.post import Letter, Post
from cotswold.cluster.standing import name_at
from cotswold.cluster.transport import Endpoint
from cotswold.errors import MachineError
from cotswold.host import Token
from cotswold.server.messages import Describe, Described

SECONDS = 1.5


def complaint(port: int, token: Token) -> str:
    operator = Operator([f"127.0.0.1:{port}"], token, wait_seconds=SECONDS)
    with operator, pytest.raises(MachineError) as raised:
        operator.look()
    return str(raised.value)


def test_an_operator_with_another_token_is_told_that_somebody_is_there_and_refuses_it() -> None:
    with (
        free_ports(1) as (port,),
        Endpoint(
            Token.new(), name_at("127.0.0.1", port), host="127.0.0.1", ports=(port,), mode="curve"
        ) as controller,
    ):
        said = complaint(port, Token.new())
        controller.receive(0.1)
        assert controller.refused["strangers"]
    assert re.search(
        f"at 127.0.0.1:{port} somebody listens and refuses this token: give the .*--token-file", said
    )
    assert "nobody listens" not in said


def test_an_operator_who_finds_nobody_is_told_that_nobody_listens() -> None:
    with free_ports(1) as (port,):
        said = complaint(port, Token.new())
    assert re.search(
        f"at 127.0.0.1:{port} nobody listens: see whether cotswold cluster start runs there", said
    )
    assert "refuses" not in said


def test_an_answer_about_another_run_that_comes_late_is_not_taken_for_that_about_this_one() -> None:
    token = Token.new()
    with free_ports(1) as (port,):
        name = name_at("127.0.0.1", port)
        with (
            Endpoint(token, name, host="127.0.0.1", ports=(port,), mode="curve") as endpoint,
            Operator([f"127.0.0.1:{port}"], token) as operator,
        ):
            asker = threading.Thread(target=_answer, args=(Post(endpoint),))
            asker.start()
            assert operator.names(["one", "two"]) == {"one": "of one", "two": "of two"}
            asker.join()


def _answer(post: Post) -> None:
    """Say of each run what it is called, and before it what the one before is called."""
    asked = ["none"]
    while "two" not in asked:
        match post.receive(5.0):
            case Letter(sender, Describe(run)):
                for each in (asked[-1], run):
                    post.send(sender, Described(each, json.dumps({"name": f"of {each}"})))
                asked.append(run)
    post.endpoint.flush(1.0)


def test_a_controller_that_takes_calls_and_says_nothing_is_not_taken_for_one_with_another_token() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        port = stopped.getsockname()[1]
        said = complaint(port, Token.new())
    assert f"from 127.0.0.1:{port} nothing is heard" in said and "refuses" not in said
