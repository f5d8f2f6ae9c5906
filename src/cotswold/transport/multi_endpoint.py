"""Several endpoints of one process as one, each on a network with its own address, peers and token.

Knows: the endpoint of each peer. Does not know: which messages use which network.

A peer is known on one network; its name decides the endpoint that a message leaves by. Events of all
networks are received alike. Peers are connected on the first network, unless the caller chooses another
(`endpoint_on`).
"""

from __future__ import annotations

import math
import select
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from cotswold.transport.endpoint import Endpoint
from cotswold.transport.frames import Buffer, Header, Packed
from cotswold.transport.peer import EndpointTraffic
from cotswold.transport.peers import Event

_MAX_CONSECUTIVE = 16
"""Events taken from one network before the next one is read."""
_MS = 1000


class MultiEndpoint:
    """Endpoints by the names of their networks; closing it closes them."""

    def __init__(self, networks: Mapping[str, Endpoint]) -> None:
        assert networks, "at least one network is needed"
        self.networks = dict(networks)
        self._all = tuple(dict.fromkeys(self.networks.values()))
        self._first = self._all[0]
        self._next = 0
        """Index of the network that is read next."""
        self._row = 0
        """Number of events taken from it in a row."""

    @property
    def name(self) -> str:
        """Name of this process on its first network."""
        return self._first.name

    @property
    def address(self) -> str:
        """Address of this process on its first network."""
        return self._first.address

    def endpoint_on(self, network: str) -> Endpoint:
        """The endpoint of a network."""
        return self.networks[network]

    def add(self, network: str, endpoint: Endpoint) -> None:
        """Add a network; its endpoint is closed with the others."""
        self.networks[network] = endpoint
        self._all = tuple(dict.fromkeys(self.networks.values()))

    @property
    def peers(self) -> Sequence[str]:
        """Names of peers that are connected or connecting on any network."""
        return tuple(name for each in self._all for name in each.peers)

    @property
    def message_bytes(self) -> int:
        """Bytes of the longest message that all networks accept."""
        return min(each.message_bytes for each in self._all)

    @property
    def max_unread_bytes(self) -> int:
        """Unread bytes after which a peer is dropped."""
        return min(each.max_unread_bytes for each in self._all)

    @property
    def port_address(self) -> str:
        """``HOST:PORT`` on the first network; raise AssertionError without a port."""
        return self._first.port_address

    @property
    def rejections(self) -> Counter[str]:
        """Refusals of all networks by kind; added to the counter of the first."""
        for each in self._all[1:]:
            self._first.rejections.update(each.rejections)
            each.rejections.clear()
        return self._first.rejections

    @property
    def traffic(self) -> EndpointTraffic:
        """Traffic of all networks together."""
        found = EndpointTraffic()
        for each in self._all:
            for field, count in vars(each.traffic).items():
                setattr(found, field, getattr(found, field) + count)
        return found

    def connect(self, peer: str, address: str) -> None:
        """Connect a peer on the first network, as `Endpoint.connect` does."""
        self._first.connect(peer, address)

    def is_local(self, peer: str) -> bool:
        """True if a peer is on this host; raise KeyError if it is not connected."""
        return self._of(peer).is_local(peer)

    def send(self, peer: str, header: Header | Packed, buffers: Sequence[Buffer] = ()) -> bool:
        """Send on the network of the peer, as `Endpoint.send` does."""
        return self._of(peer).send(peer, header, buffers)

    def receive(self, timeout: float | None) -> Event | None:
        """Return the next event of any network; None if there is none within ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            for _ in self._all:
                event = self._all[self._next % len(self._all)].receive(0.0)
                self._row += 1
                if event is None or self._row == _MAX_CONSECUTIVE:
                    self._next, self._row = self._next + 1, 0
                if event is not None:
                    return event
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            self._wait(left)

    def unread_bytes(self, peer: str) -> int:
        """Bytes sent to a peer that it has not read."""
        return self._of(peer).unread_bytes(peer)

    def watch(self, descriptor: int) -> None:
        """Watch a descriptor, as `Endpoint.watch` does."""
        self._first.watch(descriptor)

    def unwatch(self, descriptor: int) -> None:
        """Undo `watch`."""
        self._first.unwatch(descriptor)

    def drop(self, peer: str, why: str = "it was dropped here") -> None:
        """Drop a peer, as `Endpoint.drop` does."""
        self._of(peer).drop(peer, why)

    def flush(self, timeout: float) -> bool:
        """Wait until all sent messages are handed to the connections; return True if they were, in time."""
        deadline = time.monotonic() + timeout
        done = [each.flush(max(0.0, deadline - time.monotonic())) for each in self._all]
        return all(done)

    def close(self, linger: float = 1.0) -> None:
        """Disconnect all peers, and close all endpoints."""
        for each in self._all:
            each.close(linger)

    def _of(self, peer: str) -> Endpoint:
        return next((each for each in self._all if each.has(peer)), self._first)

    def _wait(self, seconds: float | None) -> None:
        """Wait until a network may have an event."""
        if any(each.has_pending() for each in self._all):
            return
        poll = select.poll()
        for each in self._all:
            poll.register(each.fileno(), select.POLLIN)
        poll.poll(None if seconds is None else math.ceil(_MS * seconds))
