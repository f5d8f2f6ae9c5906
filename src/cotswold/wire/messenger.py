"""Messages over an endpoint.

Knows: the endpoint, the codec. Does not know: the meaning of messages.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from cotswold.errors import ClusterError, MachineError
from cotswold.transport import Endpoint, Lost, MultiEndpoint, Ready
from cotswold.transport import Message as Frame
from cotswold.transport.frames import REDUCTION_KEY
from cotswold.wire import Message, Send
from cotswold.wire import lifecycle as beginning
from cotswold.wire.codec import Packing, UnknownError, decode, encode
from cotswold.wire.validation import MalformedMessageError

AnyMessage = Message | beginning.LifecycleMessage

_BATCH_BYTES, _SEPARATE_BYTES = 16 << 20, 256 << 10
"""Maximum buffer bytes of messages that share a frame, without the last message: on one host, and to another
host. Over a network, no message of a frame can be read before the whole frame has arrived, so a large frame
would block a slow link."""

_MALFORMED, _UNKNOWN = "malformed", "unknown"
_UNKNOWN_NAMES = 16
_CALL_SECONDS = 0.2
"""Minimum seconds between two connection attempts to the same unconnected peer."""
_MAX_ADDRESSES = 256
"""Number of names above which those with old attempts are forgotten."""


@dataclass(frozen=True)
class Received:
    """A message and its sender."""

    sender: str
    message: AnyMessage


@dataclass(frozen=True)
class PeerMoved:
    """A peer has a new address; unanswered requests did not reach it."""

    peer: str


Event = Received | PeerMoved | Frame | Lost | Ready


class Reconnector:
    """Connect to peers, and retry unconnected peers several times a second."""

    def __init__(self, endpoint_for: Callable[[str], Endpoint]) -> None:
        """``endpoint_for`` returns the endpoint that reaches an address."""
        self._endpoint_for = endpoint_for
        self._called_at: dict[str, float] = {}

    def connect(self, peers: Mapping[str, str]) -> None:
        """Connect to peers, given as name to address. Peers without an address are skipped. An invalid
        address counts as malformed, because another process has reported it."""
        now = time.monotonic()
        for name, address in peers.items():
            if not address:
                continue
            try:
                endpoint = self._endpoint_for(address)
            except (MachineError, ClusterError):  # its network is down and may return
                continue
            if endpoint.has(name) or now - self._called_at.get(name, 0.0) > _CALL_SECONDS:
                if len(self._called_at) >= _MAX_ADDRESSES:
                    self._called_at = {
                        each: at for each, at in self._called_at.items() if now - at <= _CALL_SECONDS
                    }
                self._called_at[name] = now
                try:
                    endpoint.connect(name, address)
                except ClusterError:
                    endpoint.rejections[_MALFORMED] += 1


class Messenger:
    """Send and receive messages by the names of peers."""

    def __init__(self, endpoint: Endpoint | MultiEndpoint) -> None:
        self.endpoint = endpoint
        self._received: deque[Received] = deque()
        """Further messages of a frame whose first message was returned."""

    def connect(self, peers: Iterable[tuple[str, str]]) -> None:
        """Connect to peers, given as (name, address)."""
        for name, address in peers:
            self.endpoint.connect(name, address)

    def send(self, to: str, message: AnyMessage) -> bool:
        """Send a message, whose buffers may change afterwards; False if the peer is not connected."""
        header, buffers = encode(message)
        return self.endpoint.send(to, header, buffers)

    def deliver(self, sends: Iterable[Send]) -> None:
        """Send several messages; those to one peer share frames and keep their order."""
        together: dict[str, tuple[Packing, int]] = {}
        for each in sends:
            if each.to not in together:
                together[each.to] = Packing(), self._batch_bytes(each.to)
            packing, most = together[each.to]
            packing.add(each.message)
            if packing.buffer_bytes > most:
                del together[each.to]
                self.endpoint.send(each.to, *packing.packed())
        for peer, (packing, _) in together.items():
            self.endpoint.send(peer, *packing.packed())

    def _batch_bytes(self, peer: str) -> int:
        """Maximum buffer bytes of messages to a peer that share a frame."""
        try:
            return _BATCH_BYTES if self.endpoint.is_local(peer) else _SEPARATE_BYTES
        except KeyError:  # the peer is not connected
            return _BATCH_BYTES

    def receive(self, timeout: float | None) -> Event | None:
        """Return the next message or event within ``timeout`` seconds, or None. Malformed frames are counted
        and skipped.

        A piece of a vector in a reduction or broadcast is returned as it arrived.
        """
        if self._received:
            return self._received.popleft()
        event = self.endpoint.receive(timeout)
        if not isinstance(event, Frame) or REDUCTION_KEY in event.header:
            return event
        try:
            found = decode(event.header, event.buffers, self._count)
        except MalformedMessageError as error:
            self._count(error)
            return None
        self._received.extend(Received(event.sender, each) for each in found)
        return self._received.popleft() if self._received else None

    def _count(self, error: MalformedMessageError) -> None:
        self.endpoint.rejections[self._reason(error)] += 1

    def _reason(self, error: MalformedMessageError) -> str:
        """Return the counter for an error; unknown messages of other releases are counted by name, up to a
        limit."""
        if not isinstance(error, UnknownError):
            return _MALFORMED
        reason = f"{_UNKNOWN} {error.name}"
        known = [each for each in self.endpoint.rejections if each.startswith(_UNKNOWN)]
        return reason if reason in known or len(known) < _UNKNOWN_NAMES else _UNKNOWN
