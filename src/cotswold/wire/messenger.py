"""Messages over an endpoint.

Knows: the endpoint, how messages are written down. Does not know: what they mean.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from cotswold.batch.runtime.reduction import KEY
from cotswold.errors import ClusterError, MachineError
from cotswold.transport import Endpoint, Lost, Ready, Roads
from cotswold.transport import Message as Frame
from cotswold.wire import Message, Send
from cotswold.wire import lifecycle as beginning
from cotswold.wire.codec import Packing, UnknownError, decode, encode
from cotswold.wire.validation import MalformedError

AnyMessage = Message | beginning.Message

_TOGETHER_BYTES, _APART_BYTES = 16 << 20, 256 << 10
"""Of messages that go together, but for the last of them: on one host, and to another. There nobody hears the
first before the last of them has come, so that a slow link would do nothing else meanwhile."""

_MALFORMED, _UNKNOWN = "malformed", "unknown"
_UNKNOWN_NAMES = 16
_CALL_SECONDS = 0.2
"""How often somebody is called who is not there."""
_CALLED = 256
"""Names beyond which those are forgotten that were called longer ago."""


@dataclass(frozen=True)
class Letter:
    """A message, and who sent it."""

    sender: str
    message: AnyMessage


@dataclass(frozen=True)
class Moved:
    """A peer is somewhere else now: what it has not answered did not come there."""

    peer: str


Event = Letter | Moved | Frame | Lost | Ready


class Calling:
    """Calls peers, and those who are not there again and again, some times a second."""

    def __init__(self, way: Callable[[str], Endpoint]) -> None:
        """``way``: the endpoint by which an address is reached."""
        self._way = way
        self._called: dict[str, float] = {}

    def meet(self, peers: Mapping[str, str]) -> None:
        """These, by name and address; whoever has no address is not called, and an address at which nobody
        can be called is counted as malformed: it is what somebody else said."""
        now = time.monotonic()
        for name, address in peers.items():
            if not address:
                continue
            try:
                endpoint = self._way(address)
            except (MachineError, ClusterError):  # its network is down: it may be there again
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


class Post:
    """Sends and receives messages by the names of peers."""

    def __init__(self, endpoint: Endpoint | Roads) -> None:
        self.endpoint = endpoint
        self._letters: deque[Letter] = deque()
        """That came with one that was handed on."""

    def meet(self, peers: Iterable[tuple[str, str]]) -> None:
        """Connect to these, given by name and address."""
        for name, address in peers:
            self.endpoint.connect(name, address)

    def send(self, to: str, message: AnyMessage) -> bool:
        """Send a message, whose buffers may change afterwards; False where the peer is not connected."""
        header, buffers = encode(message)
        return self.endpoint.send(to, header, buffers)

    def deliver(self, sends: Iterable[Send]) -> None:
        """Send several messages, those for one peer together, in their order."""
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
        """Of messages that go together to a peer."""
        try:
            return _TOGETHER_BYTES if self.endpoint.is_here(peer) else _APART_BYTES
        except KeyError:  # it is not connected
            return _TOGETHER_BYTES

    def receive(self, timeout: float | None) -> Event | None:
        """The next message or event within so many seconds; what is no message is counted and passed over.

        A piece of a vector that is reduced or broadcast is handed on as it came.
        """
        if self._letters:
            return self._letters.popleft()
        event = self.endpoint.receive(timeout)
        if not isinstance(event, Frame) or KEY in event.header:
            return event
        try:
            found = decode(event.header, event.buffers, self._count)
        except MalformedError as error:
            self._count(error)
            return None
        self._letters.extend(Letter(event.sender, each) for each in found)
        return self._letters.popleft() if self._letters else None

    def _count(self, error: MalformedError) -> None:
        self.endpoint.refused[self._reason(error)] += 1

    def _reason(self, error: MalformedError) -> str:
        """What is counted: of messages of another release the name, of some such names."""
        if not isinstance(error, UnknownError):
            return _MALFORMED
        reason = f"{_UNKNOWN} {error.name}"
        known = [each for each in self.endpoint.refused if each.startswith(_UNKNOWN)]
        return reason if reason in known or len(known) < _UNKNOWN_NAMES else _UNKNOWN
