"""Messages written into memory that the receiver maps, before they are sent."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from tests.support.transport.endpoints import connected, message

from cotswold.host import Token
from cotswold.transport import Endpoint

BYTES = 1 << 17


@pytest.fixture
def pair() -> Iterator[tuple[Endpoint, Endpoint]]:
    """Two endpoints of this host that are connected."""
    token = Token.new()
    with Endpoint(token, "a") as a, Endpoint(token, "b") as b:
        connected(a, b)
        yield a, b


def test_a_message_in_reserved_memory_is_not_copied(pair: tuple[Endpoint, Endpoint]) -> None:
    a, b = pair
    memory = a.reserve("b", BYTES)
    assert memory is not None and memory.nbytes == BYTES
    values = np.frombuffer(memory, np.uint8, BYTES - 64)
    values[:] = 7
    assert a.send("b", {"n": 1}, [values.data, b"labels"])
    came = message(b, a)
    samples, labels = came.buffers
    assert bytes(samples) == b"\x07" * (BYTES - 64) and bytes(labels) == b"labels"
    values[0] = 9  # the same memory
    assert samples[0] == 9


def test_released_memory_serves_the_next_message(pair: tuple[Endpoint, Endpoint]) -> None:
    a, b = pair
    memory = None
    for _ in range(3):
        memory = a.reserve("b", BYTES)
        assert memory is not None
        assert a.unread_bytes("b") == BYTES
        a.release("b", memory)
        assert a.unread_bytes("b") == 0
    assert memory is not None and a.send("b", {}, [bytes(BYTES)])
    a.release("b", memory)  # sent by now: it stays with its reader
    assert a.unread_bytes("b") == BYTES
    came = message(b, a)
    assert bytes(came.buffers[0]) == bytes(BYTES)


def test_memory_that_no_peer_maps_cannot_be_reserved(
    pair: tuple[Endpoint, Endpoint],
) -> None:
    a, _ = pair
    assert a.reserve("nobody", BYTES) is None
    assert a.reserve("b", 100) is None  # short messages go through the socket
