"""Helpers of the tests of endpoints: receive from one while others are served."""

from __future__ import annotations

import time
from collections.abc import Callable

from cotswold.transport import Endpoint, Event, Message

SECONDS = 10.0


def heard(by: Endpoint, *others: Endpoint, seconds: float = SECONDS) -> Event:
    """Return the next event of an endpoint, while others are served as well."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        event = by.receive(0.01)
        if event is not None:
            return event
        for other in others:
            other.flush(0.01)
            other._wait(0.01)  # an endpoint that has sent everything only looks at what it used
    raise AssertionError(f"{by.name} heard nothing")


def message(by: Endpoint, *others: Endpoint) -> Message:
    """Return the next event, which must be a message."""
    event = heard(by, *others)
    assert isinstance(event, Message), event
    return event


def connected(one: Endpoint, other: Endpoint) -> None:
    """Connect two endpoints until both have received each other's message."""
    one.connect(other.name, other.address)
    one.send(other.name, {"hello": 1})
    assert message(other, one).sender == one.name
    other.send(one.name, {"hello": 2})
    assert message(one, other).sender == other.name


def until(condition: Callable[[], bool], *served: Endpoint) -> None:
    """Serve until a condition holds, without receiving."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        for one in served:
            assert one.receive(0.01) is None
