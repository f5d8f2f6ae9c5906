"""Messages over an endpoint.

Knows: the endpoint, how messages are written down. Does not know: what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.cluster import messages as beginning
from cotswold.cluster.codec import decode, encode
from cotswold.cluster.reading import MalformedError
from cotswold.cluster.reduction import KEY
from cotswold.cluster.transport import Endpoint, Lost, Ready
from cotswold.cluster.transport import Message as Frame
from cotswold.server.messages import Message

AnyMessage = Message | beginning.Message


@dataclass(frozen=True)
class Letter:
    """A message, and who sent it."""

    sender: str
    message: AnyMessage


class Post:
    """Sends and receives messages by the names of peers."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    def send(self, to: str, message: AnyMessage) -> bool:
        """Send a message, whose buffers may change afterwards; False where the peer is not connected."""
        header, buffers = encode(message)
        return self.endpoint.send(to, header, buffers)

    def receive(self, timeout: float | None) -> Letter | Frame | Lost | Ready | None:
        """The next message or event within so many seconds; what is no message is counted and passed over.

        A piece of a vector that is reduced or broadcast is handed on as it came.
        """
        event = self.endpoint.receive(timeout)
        if not isinstance(event, Frame) or KEY in event.header:
            return event
        try:
            return Letter(event.sender, decode(event.header, event.buffers))
        except MalformedError:
            self.endpoint.refused["malformed"] += 1
            return None
