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
from cotswold.wire.validation import MalformedError

AnyMessage = Message | beginning.LifecycleMessage

_TOGETHER_BYTES, _APART_BYTES = 16 << 20, 256 << 10
"""Maximum buffer bytes of messages that share a frame, without the last message: on one host, and to another
host. Over a network, no message of a frame can be read before the whole frame has arrived, so a large frame
would block a slow link."""

_MALFORMED, _UNKNOWN = "malformed", "unknown"
_UNKNOWN_NAMES = 16
_CALL_SECONDS = 0.2
"""Minimum seconds between two connection attempts to the same unconnected peer."""
_CALLED = 256
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

    def __init__(self, way: Callable[[str], Endpoint]) -> None:
        """``way`` returns the endpoint that reaches an address."""
        self._way = way
        self._called: dict[str, float] = {}

    def meet(self, peers: Mapping[str, str]) -> None:
        """Connect to peers, given as name to address. Peers without an address are skipped. An invalid
        address counts as malformed, because another process has reported it."""
        now = time.monotonic()
        for name, address in peers.items():
            if not address:
                continue
            try:
                endpoint = self._way(address)
            except (MachineError, ClusterError):  # its network is down and may return
                continue
            if endpoint.has(name) or now - self._called.get(name, 0.0) > _CALL_SECONDS:
                if len(self._called) >= _CALLED:
                    self._called = {
                        each: at for each, at in self._called.items() if now - at <= _CALL_SECONDS
                    }
                self._called[name] = now
                try:
                    endpoint.connect(name, address)
                except ClusterError:
                    endpoint.refused[_MALFORMED] += 1


class Messenger:
    """Send and receive messages by the names of peers."""

    def __init__(self, endpoint: Endpoint | MultiEndpoint) -> None:
        self.endpoint = endpoint
        self._received: deque[Received] = deque()
        """Further messages of a frame whose first message was returned."""

    def meet(self, peers: Iterable[tuple[str, str]]) -> None:
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
                together[each.to] = Packing(), self._most_bytes(each.to)
            packing, most = together[each.to]
            packing.add(each.message)
            if packing.buffer_bytes > most:
                del together[each.to]
                self.endpoint.send(each.to, *packing.packed())
        for peer, (packing, _) in together.items():
            self.endpoint.send(peer, *packing.packed())

    def _most_bytes(self, peer: str) -> int:
        """Maximum buffer bytes of messages to a peer that share a frame."""
        try:
            return _TOGETHER_BYTES if self.endpoint.is_here(peer) else _APART_BYTES
        except KeyError:  # the peer is not connected
            return _TOGETHER_BYTES

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
        except MalformedError as error:
            self._count(error)
            return None
        self._received.extend(Received(event.sender, each) for each in found)
        return self._received.popleft() if self._received else None

    def _count(self, error: MalformedError) -> None:
        self.endpoint.refused[self._reason(error)] += 1

    def _reason(self, error: MalformedError) -> str:
        """Return the counter for an error; unknown messages of other releases are counted by name, up to a
        limit."""
        if not isinstance(error, UnknownError):
            return _MALFORMED
        reason = f"{_UNKNOWN} {error.name}"
        known = [each for each in self.endpoint.refused if each.startswith(_UNKNOWN)]
        return reason if reason in known or len(known) < _UNKNOWN_NAMES else _UNKNOWN
