"""What sockets that call and sockets that are called have in common.

Knows: ZeroMQ's options and events. Does not know: peers.
"""

from __future__ import annotations

import zmq

MESSAGES_AHEAD = 16
"""Messages that ZeroMQ keeps for a peer, at most; further ones wait with us, where they are counted."""
REFUSED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
"""What a monitor says where a connection does not come about."""
# masks of type int: `&` of two flags of an enum takes as long as asking ZeroMQ
_IN, _OUT = int(zmq.POLLIN), int(zmq.POLLOUT)


def has_come(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message can be received; where not, the socket's descriptor tells when one comes.

    Half the time of ``poll(0)``, and less than an exception where there is none.
    """
    return bool(_events(socket) & _IN)


def has_room(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message can be sent."""
    return bool(_events(socket) & _OUT)


def has_come_and_room(socket: zmq.Socket[bytes]) -> tuple[bool, bool]:
    """Both, from one look."""
    events = _events(socket)
    return bool(events & _IN), bool(events & _OUT)


def has_more(socket: zmq.Socket[bytes]) -> bool:
    """Whether another frame belongs to the message whose frame was received last."""
    return bool(socket.getsockopt(zmq.RCVMORE))


def _events(socket: zmq.Socket[bytes]) -> int:
    events = socket.getsockopt(zmq.EVENTS)
    assert isinstance(events, int)
    return events
