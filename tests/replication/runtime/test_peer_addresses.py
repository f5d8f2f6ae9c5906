"""Addresses of servers as known by a controller's process."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import cast

from cotswold.replication.runtime.controller_process import ControllerProcess
from cotswold.wire import Heartbeat
from cotswold.wire.lifecycle import PeerAddresses


class Sent:
    def __init__(self) -> None:
        self.sent: list[tuple[str, object]] = []
        self.endpoint = SimpleNamespace(rejections=Counter[str]())

    def send(self, to: str, message: object) -> bool:
        self.sent.append((to, message))
        return True


def test_addresses_of_servers_that_are_forgotten_are_not_kept_and_news_of_others_are_told() -> None:
    role = ControllerProcess.__new__(ControllerProcess)
    known = {name: SimpleNamespace(name=name) for name in ("server-a-0", "server-b-0")}
    servers = SimpleNamespace(of=known, live=known.values())
    role._machine = cast(object, SimpleNamespace(servers=servers))  # type: ignore[assignment]  # a stand-in
    role._messenger = cast(object, Sent())  # type: ignore[assignment]  # a stand-in
    role._peer_addresses = {}
    for number in range(50):
        name = f"server-c-0+{number}"
        known[name] = SimpleNamespace(name=name)
        role._on_address(Heartbeat(name, "c", f"at {number}", 1, ()))
        del known[name]
    assert len(role._peer_addresses) == 1
    role._on_address(Heartbeat("server-a-0", "a", "here", 1, ()))
    role._on_address(Heartbeat("server-a-0", "a", "there", 2, ()))
    assert cast(Sent, role._messenger).sent == [("server-b-0", PeerAddresses((("server-a-0", "there"),)))]
