"""Waiting for several endpoints at once: no message is missed."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from contextlib import ExitStack
from threading import Thread
from typing import Protocol

import pytest

from cotswold.host import Token
from cotswold.transport import Endpoint, Message
from cotswold.transport.multi_endpoint import MultiEndpoint
from cotswold.transport.protocol_versions import PROTOCOL

TOKEN = Token.new()
SECONDS = 5.0
MESSAGES = 20_000
LONG = bytes(1 << 17)
"""A payload for shared memory, so that both sides also report what they have read."""


class Receiving(Protocol):
    """A holder of several endpoints."""

    def receive(self, timeout: float) -> object: ...


class Nested:
    """Two endpoints in a selector of the test."""

    def __init__(self, *endpoints: Endpoint) -> None:
        self._endpoints = endpoints
        self._poll = select.poll()
        for each in endpoints:
            self._poll.register(each.fileno(), select.POLLIN)

    def receive(self, timeout: float) -> object:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if not any(each.has_pending() for each in self._endpoints):
                self._poll.poll(1000 * (deadline - time.monotonic()))
            for each in self._endpoints:
                event = each.receive(0.0)
                if event is not None:
                    return event
        return None


class Link:
    """The same as `MultiEndpoint`."""

    def __init__(self, *endpoints: Endpoint) -> None:
        self._roads = MultiEndpoint({str(place): each for place, each in enumerate(endpoints)})

    def receive(self, timeout: float) -> object:
        return self._roads.receive(timeout)


def serve(endpoint: Endpoint) -> None:
    """Answer each message until the peer is lost."""
    with endpoint:
        while isinstance(event := endpoint.receive(2 * SECONDS), Message):
            endpoint.send(event.sender, event.header, event.buffers)


@pytest.fixture
def echoes() -> Iterator[list[Endpoint]]:
    """Yield endpoints that answer their messages, each in a thread."""
    with ExitStack() as held:
        made = [Endpoint(TOKEN, f"echo-{number}") for number in range(2)]
        for each in made:
            thread = Thread(target=serve, args=(each,), daemon=True)
            held.callback(thread.join)
            thread.start()
        yield made


@pytest.mark.parametrize("kind", [Nested, Link])
def test_no_wake_up_is_lost_among_two_endpoints(kind: type[Nested | Link], echoes: list[Endpoint]) -> None:
    """With two conversations, of which one pauses at times, a missed message costs 5 s."""
    with Endpoint(TOKEN, "one") as one, Endpoint(TOKEN, "other") as other:
        ends = dict(zip([each.name for each in echoes], (one, other), strict=True))
        for echo in echoes:
            ends[echo.name].connect(echo.name, echo.address)
            ends[echo.name].send(echo.name, {"number": 0})
        both: Receiving = kind(one, other)
        under_way = dict.fromkeys(ends, 1)
        for number in range(1, MESSAGES + 1):
            came = both.receive(SECONDS)
            assert isinstance(came, Message), f"nothing came within {SECONDS} s, after {number} messages"
            end, buffers = ends[came.sender], [LONG] if number % 7 == 0 else []
            if under_way[came.sender] > 1:  # only the last of several is answered
                under_way[came.sender] -= 1
                continue
            end.send(came.sender, {"number": number}, buffers)
            if number % 11 == 0:
                end.send(came.sender, {"number": -number})
                under_way[came.sender] += 1
        assert both.receive(SECONDS) is not None


@pytest.mark.parametrize("kind", [Nested, Link])
def test_what_comes_behind_many_messages_that_are_none_is_not_slept_over(kind: type[Nested | Link]) -> None:
    with Endpoint(TOKEN, "one") as one, Endpoint(TOKEN, "other") as other:
        other.connect("one", one.address)
        both: Receiving = kind(one, other)
        other.send("one", {})
        assert isinstance(both.receive(SECONDS), Message)
        for _ in range(20):
            for _ in range(200):
                other._peers.of["one"].connection.socket.send(b"D" + bytes((PROTOCOL,)) + b"?")
            other.send("one", {})
            assert isinstance(both.receive(SECONDS), Message)


def test_who_waits_for_nothing_hears_nothing_and_does_not_spin() -> None:
    with Endpoint(TOKEN, "one") as one, Endpoint(TOKEN, "other") as other:
        networks = MultiEndpoint({"first": one, "second": other})
        before, began = time.thread_time(), time.monotonic()
        assert networks.receive(0.3) is None
        assert time.monotonic() - began >= 0.3
        assert time.thread_time() - before < 0.1


def test_a_flooded_network_does_not_hide_another() -> None:
    with (
        Endpoint(TOKEN, "one") as one,
        Endpoint(TOKEN, "other") as other,
        Endpoint(TOKEN, "flood") as flood,
        Endpoint(TOKEN, "drop") as drop,
    ):
        networks = MultiEndpoint({"first": one, "second": other})
        flood.connect("one", one.address)
        drop.connect("other", other.address)
        deadline = time.monotonic() + SECONDS
        while not (one.has("flood") and other.has("drop")):
            assert time.monotonic() < deadline and networks.receive(0.01) is None
        for _ in range(100):
            flood.send("one", {})
        drop.send("other", {})
        for sender in (flood, drop):
            assert sender.flush(SECONDS)
        for each in (one, other):
            assert each.has_pending() or select.select([each.fileno()], [], [], SECONDS)[0]
        heard = [networks.receive(SECONDS) for _ in range(40)]
        assert "drop" in [each.sender for each in heard if isinstance(each, Message)]
