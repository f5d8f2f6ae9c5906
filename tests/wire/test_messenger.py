"""Batches of messages: as few frames as possible on one host, shorter ones to another."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from cotswold import wire as m
from cotswold.host import Token
from cotswold.transport import Endpoint
from cotswold.wire.messenger import Messenger, Received

TOKEN = Token.new()
BUFFER_BYTES, MESSAGES = 100_000, 8


def received(sender: Messenger, receiver: Messenger, count: int) -> list[object]:
    """Return the next ``count`` messages."""
    found: list[object] = []
    deadline = time.monotonic() + 10
    while len(found) < count:
        assert time.monotonic() < deadline
        sender.endpoint.flush(0.01)
        letter = receiver.receive(0.01)
        if isinstance(letter, Received):
            found.append(letter.message)
    return found


def whole(messages: Sequence[object]) -> list[tuple[int, bytes]]:
    """Return the contents of the test's messages."""
    assert all(isinstance(each, m.Write) for each in messages)
    return [(each.number, bytes(each.buffers[0])) for each in messages if isinstance(each, m.Write)]  # type: ignore[call-overload]  # a buffer


@pytest.mark.parametrize(("is_apart", "frames"), [(False, 1), (True, 3)])
def test_messages_to_another_host_go_in_shorter_frames_and_in_their_order(
    is_apart: bool, frames: int
) -> None:
    host = "127.0.0.1" if is_apart else None
    with (
        Endpoint(TOKEN, "one", host=host, encrypt=False, apart=is_apart) as one,
        Endpoint(TOKEN, "other", host=host, encrypt=False, apart=is_apart) as other,
    ):
        sender, receiver = Messenger(one), Messenger(other)
        sender.connect([("other", other.address)])
        said = [m.Write(number, "x", (0,), (bytes([number]) * BUFFER_BYTES,)) for number in range(MESSAGES)]
        sender.deliver([m.Send("other", each) for each in said])
        assert whole(received(sender, receiver, MESSAGES)) == whole(said)
        assert other.traffic.received_messages == frames, "of more than 256 KiB each, but for the last"
