"""Errors after a change of token, reported once by any process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from cotswold.errors import MachineError
from cotswold.host import Token
from cotswold.host.keyring import Keyring, KeyringFile
from cotswold.processes.supervisor_link import SupervisorLink
from cotswold.replication.controller.settings import ControllerSettings
from cotswold.replication.metadata import MetadataLocation
from cotswold.replication.replica.settings import ReplicationSettings
from cotswold.replication.runtime.controller_process import ControllerProcess, MetadataThread
from cotswold.replication.runtime.networks import NetworkEndpoints
from cotswold.replication.runtime.server_process import ReplicaServerProcess
from cotswold.transport import Endpoint
from cotswold.transport import token_rotation as rotating
from cotswold.transport.token_rotation import TokenRotation
from cotswold.wire.lifecycle import EventReport
from cotswold.wire.messenger import Messenger


class Door:
    """An endpoint that may have no port for another token."""

    def __init__(self, name: str, *, has_port: bool) -> None:
        self._name, self.has_port = name, has_port

    def rotate(self, ring: Keyring) -> None:
        if not self.has_port:
            raise MachineError(f"{self._name} cannot listen")


@pytest.fixture
def tokens(tmp_path: Path) -> TokenRotation:
    return TokenRotation(KeyringFile.create(tmp_path / "token"))


def test_an_endpoint_without_a_port_is_told_of_once_though_others_have_one(tokens: TokenRotation) -> None:
    one, other, third = (
        Door("one", has_port=False),
        Door("other", has_port=True),
        Door("third", has_port=False),
    )
    endpoints = cast(Any, (one, other, third))
    assert tokens.tick(endpoints, 10.0) == ["one cannot listen", "third cannot listen"]
    assert not tokens.tick(endpoints, 20.0) and not tokens.tick(endpoints, 30.0)
    one.has_port = True
    assert not tokens.tick(endpoints, 40.0)
    one.has_port = False
    assert tokens.tick(endpoints, 50.0) == ["one cannot listen"]


def test_a_file_that_is_gone_is_told_of_once(tokens: TokenRotation, tmp_path: Path) -> None:
    (tmp_path / "token").unlink()
    (sentence,) = tokens.tick((), 10.0)
    assert "has been removed" in sentence and not tokens.tick((), 20.0)


class Told(Messenger):
    """Messages of a process."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.happened = list[EventReport]()

    def send(self, to: str, message: Any) -> bool:
        if isinstance(message, EventReport):
            self.happened.append(message)
        return True


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setattr(rotating, "_CHECK_SECONDS", 0.0)
    with Endpoint(Token.new(), "server-1") as found:
        monkeypatch.setattr(found, "rotate", Door("server-1", has_port=False).rotate)
        yield found


def test_a_server_without_a_port_for_the_next_token_says_so(
    endpoint: Endpoint, tokens: TokenRotation
) -> None:
    messenger = Told(endpoint)
    ways = NetworkEndpoints(endpoint, endpoint, endpoint)
    role = ReplicaServerProcess(
        "server-1", "host", messenger, {}, ReplicationSettings(), ways, SupervisorLink("", tokens)
    )
    for now in (100.0, 200.0):
        role._tick(now)
    assert messenger.happened == [
        EventReport("token_rotation", "server-1", "server-1: server-1 cannot listen")
    ]


def test_a_controller_without_a_port_for_the_next_token_says_so(
    endpoint: Endpoint, tokens: TokenRotation, tmp_path: Path
) -> None:
    messenger = Told(endpoint)
    with ExitStack() as held:
        state = held.enter_context(MetadataThread(MetadataLocation(sqlite=str(tmp_path / "state.sqlite"))))
        role = ControllerProcess(
            "controller-1", messenger, state, ControllerSettings(), endpoint, SupervisorLink("", tokens)
        )
        for now in (100.0, 200.0):
            role._tick(now)
    told = [each for each in messenger.happened if each.kind == "token_rotation"]
    assert told == [EventReport("token_rotation", "controller-1", "controller-1: server-1 cannot listen")]
