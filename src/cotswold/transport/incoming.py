"""Incoming messages of an endpoint: read from its listeners, checked, and queued as events.

Knows: listeners, peers, the form of frames. Does not know: sending, waiting, the meaning of messages.
"""

from __future__ import annotations

from functools import partial

from cotswold.transport.frames import (
    DATA,
    HELLO,
    MEMORY,
    LossCause,
    MalformedFrameError,
    Message,
    decode_buffers,
    join_frames,
    split_head,
    unpack,
)
from cotswold.transport.listener import EndpointListener, IncomingMessage
from cotswold.transport.listeners import Listeners
from cotswold.transport.peer import EndpointTraffic
from cotswold.transport.peers import OLD_TOKEN_REASON, EndpointState, Peers
from cotswold.transport.protocol_versions import Versions

_BATCH = 64
"""Number of messages read at a time, at most."""


class Incoming:
    """Reads what arrives at the listeners of an endpoint. The owner sets `listeners` and `peers` before any
    listener opens."""

    listeners: Listeners
    peers: Peers

    def __init__(self, common: EndpointState, traffic: EndpointTraffic, message_bytes: int) -> None:
        """``message_bytes``: largest message in bytes; longer ones are refused."""
        self._common, self._traffic, self._message_bytes = common, traffic, message_bytes

    def _count_unauthenticated(self, listener: EndpointListener) -> None:
        self._common.rejections["strangers"] += listener.rejected()

    def add(self, listener: EndpointListener) -> None:
        """Handle a new listener."""
        self._common.poller.add_socket(listener.descriptor, partial(self._on_readable, listener))
        self._common.poller.add_socket(
            listener.monitor_descriptor, partial(self._count_unauthenticated, listener)
        )

    def remove(self, listener: EndpointListener) -> None:
        """Prepare to close a listener: read what has arrived, then drop its connections."""
        self.read_all()
        self._count_unauthenticated(listener)
        for caller in list(listener.callers.values()):
            if caller.name in self.peers.of:
                self.peers.drop(caller.name, OLD_TOKEN_REASON, cause=LossCause.OLD_TOKEN)
        self._common.poller.remove(listener.descriptor)
        self._common.poller.remove(listener.monitor_descriptor)

    def _on_readable(self, listener: EndpointListener) -> None:
        """Read what has arrived, up to one event."""
        for _ in range(_BATCH):
            if not self._read(listener):
                return
            if self._common.events:
                break
        self._common.poller.recheck(listener.descriptor)

    def read_all(self) -> None:
        """Read what has arrived, up to a bound."""
        for listener in self.listeners.listeners:
            self._common.poller.recheck(listener.descriptor)
            for _ in range(_BATCH):
                if not self._read(listener):
                    break

    def _read(self, listener: EndpointListener) -> bool:
        """Read one message; False if there is none."""
        came = listener.receive()
        if came is None:
            return False
        try:
            self._on_message(listener, came)
        except MalformedFrameError as error:
            self._common.rejections["oversized" if error.oversized else "malformed"] += 1
        return True

    def _on_message(self, listener: EndpointListener, came: IncomingMessage) -> None:
        """Handle one incoming message; raise MalformedFrameError."""
        kind, version, packed = split_head(came.first)
        if kind == HELLO:
            self.peers.on_hello(listener, came, version, packed)
            return
        caller = listener.callers.get(came.number)
        peer = None if caller is None else self.peers.of.get(caller.name)
        if peer is None:  # lost, but has not noticed
            return
        if kind not in (DATA, MEMORY):
            raise MalformedFrameError("unknown kind of message")
        if not self.peers.versions.supports(version):
            self.peers.refuse_version(listener, came.number)
            self.peers.drop_for_version(peer, Versions(version, version))
            return
        size = len(came.first) + sum(one.nbytes for one in came.frames)
        if kind == MEMORY:
            self._traffic.received_bytes += size
            peer.on_memory_message(*_numbers(unpack(packed)))
        else:
            header, sizes, loan = decode_buffers(packed, came.frames, self._message_bytes)
            buffers = (
                join_frames(sizes, came.frames) if loan is None else peer.buffer_receiver.views(loan, sizes)
            )
            self._traffic.received_messages += 1
            self._traffic.received_bytes += size
            if loan is not None:
                self._traffic.received_shared_bytes += sum(sizes)
            self._common.events.append(Message(peer.name, header, buffers))


def _numbers(said: object) -> tuple[list[int], list[int]]:
    """Block numbers that a peer returns and drops; raise MalformedFrameError."""
    if isinstance(said, list) and len(said) == 2 and all(isinstance(one, list) for one in said):
        given_back, dropped = said
        if all(isinstance(one, int) for one in (*given_back, *dropped)):
            return given_back, dropped
    raise MalformedFrameError("no blocks of shared memory")
