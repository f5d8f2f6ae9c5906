"""Raw ZeroMQ frames between two processes: the reference for pushes and pulls.

Knows: one pair of sockets, CURVE. Does not know: endpoints, messages.

A request is a frame with the number and length of the answer's frames, then frames of any length. The answer
is sent once the whole request has arrived.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import zmq
import zmq.utils.z85

from cotswold.host import Call, ForkServer, Token, keep_freed_memory

_MESSAGES_AHEAD = 16
_SECONDS = 60


class RawPeer:
    """A process that answers, and the socket to it; use in a ``with`` statement."""

    def __init__(self, processes: ForkServer, token: Token, *, tcp: bool, curve: bool) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="cotswold-")
        secret = zmq.utils.z85.encode(token.derive("raw")).decode() if curve else None
        self._context = zmq.Context()
        self._socket = socket = self._context.socket(zmq.PAIR)
        socket.sndhwm = socket.rcvhwm = _MESSAGES_AHEAD
        socket.linger, socket.rcvtimeo, socket.sndtimeo = 0, 1000 * _SECONDS, 1000 * _SECONDS
        if secret is not None:
            socket.curve_secretkey, socket.curve_server = secret.encode(), 1
        socket.bind("tcp://127.0.0.1:*" if tcp else f"ipc://{self._folder.name}/raw")
        where = socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(where, bytes)
        arguments = {"where": where.rstrip(b"\0").decode(), "secret": secret}
        self._process = processes.start(Call("raw", "cotswold.bench.server.raw:run_echo_process", arguments))

    def push(self, frames: Sequence[memoryview]) -> None:
        """Send frames, and wait until they have arrived."""
        self._socket.send_multipart([b"1 0", *frames])
        self._socket.recv()

    def pull(self, count: int, length: int) -> list[zmq.Frame]:
        """Request ``count`` frames of a length, and wait for them."""
        self._socket.send(b"%d %d" % (count, length))
        return self._socket.recv_multipart(copy=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.end()
        self._socket.close()
        self._context.term()
        self._folder.cleanup()


def run_echo_process(*, where: str, secret: str | None) -> int:
    """Run the process that answers at ``where``, until its parent ends it."""
    keep_freed_memory()  # as servers and replicas do
    with zmq.Context() as context:
        socket = context.socket(zmq.PAIR)
        socket.sndhwm = socket.rcvhwm = _MESSAGES_AHEAD
        if secret is not None:
            socket.curve_secretkey = secret.encode()
            socket.curve_publickey = socket.curve_serverkey = zmq.curve_public(secret.encode())
        socket.connect(where)
        data = bytearray()
        while True:
            first = socket.recv_multipart(copy=False)[0].bytes
            count, length = map(int, first.split())
            if len(data) != length:
                data = bytearray(length)
            socket.send_multipart([data] * count)
