"""Target: an endpoint with a good peer, a bad peer with the token, callers, impostors, and raw bytes at its
port.

Knows: frames of the transport, raw sockets. Does not know: the meaning of messages.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgpack
import zmq

from cotswold.host import Token
from cotswold.transport import Endpoint, Message
from cotswold.transport.address import Address
from cotswold.transport.authentication import Keys, call_as, new_nonce
from cotswold.transport.frames import DATA, GONE, HELLO, MEMORY, REFUSAL, WELCOME
from cotswold.transport.protocol_versions import PROTOCOL
from cotswold.wire.messenger import Received

from .messages import EncodedMessage, MessageGenerator
from .target import BrokenError, Target

_SECONDS = 10.0
_LINGER_MS = 5_000
"""Linger of a caller's socket, longer than a refusal takes."""
_KINDS = (DATA, HELLO, MEMORY, WELCOME, GONE, REFUSAL, b"?", b"\0", b"")
_MESSAGE_BYTES = 1 << 20
_MOST_PEERS, _MOST_DESCRIPTORS = 40, 600
KNOWN, CALLER, THIEF, STRANGER = "known", "caller", "thief", "stranger"


class EndpointTarget(Target):
    """The endpoint as a target, with *hmac* on the loopback."""

    words = ("one", "good", "bad", "third", "no name", "")

    def __init__(self) -> None:
        super().__init__()
        self._token = Token.new()
        self._one = Endpoint(self._token, "one", host="127.0.0.1", message_bytes=_MESSAGE_BYTES)
        self._good, self._bad = Endpoint(self._token, "good"), Endpoint(self._token, "bad")
        self._context = zmq.Context()
        self._said: list[list[bytes]] = []
        """Valid frames, to be repeated."""
        self._numbers = 0
        self.check()

    def next(self, making: MessageGenerator, random: Random) -> EncodedMessage:
        """Return frames from a random sender."""
        who = random.choice((KNOWN, KNOWN, KNOWN, KNOWN, CALLER, THIEF, STRANGER))
        if self._said and random.random() < 0.1:
            return EncodedMessage(who, None, tuple(random.choice(self._said)))
        kind = random.choice(_KINDS)
        version = random.choice((PROTOCOL, PROTOCOL, PROTOCOL, 0, PROTOCOL + 1, 255))
        body = self._body(kind, making, random)
        first = kind + (bytes((version,)) if random.random() < 0.97 else b"") + body
        if random.random() < 0.1:
            first = first[: random.randrange(len(first) + 1)]
        lengths = random.choices((0, 1, 4, 64, 1000, 70_000), k=random.randrange(3))
        rest = [random.randbytes(each) for each in lengths]
        if random.random() < 0.005:
            rest = [bytes(17 << 20)]
        return EncodedMessage(who, None, (first, *rest))

    def _body(self, kind: bytes, making: MessageGenerator, random: Random) -> bytes:
        if random.random() < 0.02:
            return b"\x81\x90\x01"  # a map whose key is a list
        if random.random() < 0.15:
            return random.randbytes(random.randrange(60))
        junk = making.plain
        if kind == HELLO:
            said: dict[object, object] = {
                "name": random.choice(("bad", "bad", "good", "third", "", "a b", junk())),
                "address": random.choice((self._bad.address, self._good.address, "none", junk())),
                "nonce": random.choice(("n", "x" * 2000, junk())),
                "to": random.choice(("one", "one", "two", junk())),
                "probe": random.choice((-1, 0, 5, 1 << 40, junk())),
                "oldest": random.choice((0, PROTOCOL, 255, -1, junk())),
                "answers": random.choice(("", "", "n", junk())),
            }
            said.pop(random.choice((*said, *said, None)), None) if random.random() < 0.2 else None
            packed: bytes = msgpack.packb(said)
        elif kind == MEMORY:
            packed = msgpack.packb(random.choice(([[0], []], [[], [0, 1]], [["a"], []], junk())))
        else:
            sizes = random.choice(([], [4], [64, 0], [1 << 30], [1 << 62], [-1], junk()))
            loans: list[list[object]] = [[], [[0, 3, 1 << 16]], [[0, -1, 5]], [[1 << 70]], [junk()]]
            packed = msgpack.packb([{"message": junk()}, sizes, *_fit(random.choice(loans))])
        return packed

    def hear(self, said: EncodedMessage) -> None:
        """Send the frames as their sender."""
        {KNOWN: self._known, CALLER: self._caller, THIEF: self._thief, STRANGER: self._stranger}[said.sender](
            list(said.buffers)
        )
        self._serve()

    def _known(self, frames: list[bytes]) -> None:
        if not self._bad.has("one"):
            self._bad.connect("one", self._one.address)
            self._bad.send("one", {"hello": 1})
            self._until(lambda: self._bad.version_of("one") if self._bad.has("one") else True)
        peer = self._bad._peers.of.get("one")
        if peer is not None:
            with contextlib.suppress(zmq.Again):
                peer.connection.socket.send_multipart(frames or [b""], zmq.NOBLOCK)
            self._bad._readiness.recheck(peer.connection.descriptor)

    def _caller(self, frames: list[bytes], token: Token | None = None) -> None:
        address = Address.parsed(self._one.address)
        assert address.tcp is not None, "it has a host"
        keys = Keys.of(token or self._token)
        with self._context.socket(zmq.DEALER) as caller:
            caller.linger, caller.reconnect_ivl = _LINGER_MS, -1
            call_as(caller, keys, "hmac", address.challenge, "bad", new_nonce())
            caller.connect(address.tcp)
            with contextlib.suppress(zmq.Again):
                caller.send_multipart(frames or [b""], zmq.NOBLOCK)
            self._serve()

    def _thief(self, frames: list[bytes]) -> None:
        self._caller(frames, Token.new())

    def _stranger(self, frames: list[bytes]) -> None:
        host, _, port = self._one.port_address.rpartition(":")
        with (
            contextlib.suppress(OSError),
            socket.create_connection((host, int(port)), timeout=_SECONDS) as caller,
        ):
            caller.settimeout(_SECONDS)
            caller.sendall(b"".join(frames)[:100_000])

    def _serve(self) -> None:
        for endpoint in (self._one, self._bad, self._good):
            for _ in range(20):
                if endpoint.receive(0.0) is None:
                    break

    def _until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + _SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise BrokenError("a correct peer gets no reply")
            self._serve()

    def attend(self, letter: Received) -> None:
        """Do nothing: the endpoint has no role."""

    def turn(self) -> None:
        """Do nothing: the endpoint works by itself."""

    def guarded(self) -> object:
        """Return None: there is no protected state."""
        return None

    def check(self) -> None:
        """Check that the endpoint serves a good peer in spite of other senders, and that nothing grows."""
        self._numbers += 1
        deadline = time.monotonic() + _SECONDS
        came: object = None
        while came != {"number": self._numbers}:
            if time.monotonic() > deadline:
                raise BrokenError("a correct peer's messages do not arrive")
            if not self._good.has("one"):
                self._good.connect("one", self._one.address)
            self._good.send("one", {"number": self._numbers}, [bytes(100)])
            event = self._one.receive(0.05)
            came = event.header if isinstance(event, Message) else None
            self._good.receive(0.0)
        if len(self._one.peers) > _MOST_PEERS:
            raise BrokenError(f"the endpoint has {len(self._one.peers)} peers")
        # callers' sockets may close late
        while len(list(Path("/proc/self/fd").iterdir())) > _MOST_DESCRIPTORS:
            if time.monotonic() > deadline:
                raise BrokenError("file descriptors leak")
            self._serve()
        head = DATA + bytes((PROTOCOL,))
        self._said = [[head + msgpack.packb([{"number": self._numbers}, []])]]

    def counts(self) -> Counter[str]:
        """Return the refused messages by kind."""
        return Counter(self._one.rejections)

    def close(self) -> None:
        """Close all endpoints, the callers first: ZeroMQ aborts if a socket is closed at the moment in which
        a partly sent message of several frames breaks off (libzmq, issue 3442)."""
        for each in (self._good, self._bad, self._one):
            each.close(0.0)
        self._context.destroy(0)


def _fit(values: list[object]) -> list[object]:
    """Return the values that msgpack accepts."""
    found = []
    for each in values:
        with contextlib.suppress(OverflowError, TypeError, ValueError):
            msgpack.packb(each)
            found.append(each)
    return found
