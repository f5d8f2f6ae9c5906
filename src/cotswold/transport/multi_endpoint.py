"""Several endpoints of one process as one: each road has an address, peers and a token of its own.

Knows: which endpoint has which peer. Does not know: what goes on which road.

A peer is known on one road: by its name it is told which endpoint a message leaves by. What comes on any road
is an event like any other. The first road is the one on which whoever is called is connected, if nothing else
is said (`on`)."""

from __future__ import annotations

import math
import select
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from cotswold.transport.endpoint import Endpoint
from cotswold.transport.frames import Buffer, Header, Packed
from cotswold.transport.peer import Traffic
from cotswold.transport.peers import Event

_IN_A_ROW = 16
"""Events of one road, before another is looked at."""
_MS = 1000


class Roads:
    """Endpoints by the names of their roads; to be closed, which closes them."""

    def __init__(self, roads: Mapping[str, Endpoint]) -> None:
        assert roads, "there is a road"
        self.roads = dict(roads)
        self._all = tuple(dict.fromkeys(self.roads.values()))
        self._first = self._all[0]
        self._turn = 0
        """Whose events are taken next."""
        self._row = 0
        """How many of its were taken."""

    @property
    def name(self) -> str:
        """That of this process on its first road."""
        return self._first.name

    @property
    def address(self) -> str:
        """By which peers connect on the first road."""
        return self._first.address

    def on(self, road: str) -> Endpoint:
        """The endpoint of a road."""
        return self.roads[road]

    def add(self, road: str, endpoint: Endpoint) -> None:
        """One road more; it is closed with the others."""
        self.roads[road] = endpoint
        self._all = tuple(dict.fromkeys(self.roads.values()))

    @property
    def peers(self) -> Sequence[str]:
        """Whoever is connected, or being connected, on any road."""
        return tuple(name for each in self._all for name in each.peers)

    @property
    def message_bytes(self) -> int:
        """A message of more is refused."""
        return min(each.message_bytes for each in self._all)

    @property
    def most_waiting_bytes(self) -> int:
        """A peer for which more wait is dropped."""
        return min(each.most_waiting_bytes for each in self._all)

    @property
    def port_address(self) -> str:
        """``HOST:PORT`` on the first road; raises AssertionError without a port."""
        return self._first.port_address

    @property
    def refused(self) -> Counter[str]:
        """What was refused on all roads; counted on the first where it is added to."""
        for each in self._all[1:]:
            self._first.refused.update(each.refused)
            each.refused.clear()
        return self._first.refused

    @property
    def traffic(self) -> Traffic:
        """Of all roads together."""
        found = Traffic()
        for each in self._all:
            for field, count in vars(each.traffic).items():
                setattr(found, field, getattr(found, field) + count)
        return found

    def connect(self, peer: str, address: str) -> None:
        """As an endpoint does, on the first road."""
        self._first.connect(peer, address)

    def is_here(self, peer: str) -> bool:
        """Whether a peer is on this host; raises KeyError for one that is not connected."""
        return self._of(peer).is_here(peer)

    def send(self, peer: str, header: Header | Packed, buffers: Sequence[Buffer] = ()) -> bool:
        """As an endpoint does, on the road on which the peer is."""
        return self._of(peer).send(peer, header, buffers)

    def receive(self, timeout: float | None) -> Event | None:
        """The next event of any road, within so many seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            for _ in self._all:
                event = self._all[self._turn % len(self._all)].receive(0.0)
                self._row += 1
                if event is None or self._row == _IN_A_ROW:
                    self._turn, self._row = self._turn + 1, 0
                if event is not None:
                    return event
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            self._wait(left)

    def waiting_bytes(self, peer: str) -> int:
        """Bytes sent to a peer that it has not taken."""
        return self._of(peer).waiting_bytes(peer)

    def watch(self, descriptor: int) -> None:
        """As an endpoint does."""
        self._first.watch(descriptor)

    def unwatch(self, descriptor: int) -> None:
        """As an endpoint does."""
        self._first.unwatch(descriptor)

    def drop(self, peer: str, why: str = "it was dropped here") -> None:
        """As an endpoint does."""
        self._of(peer).drop(peer, why)

    def flush(self, timeout: float) -> bool:
        """Wait until all that was sent has been handed to the connections; whether it was, in time."""
        deadline = time.monotonic() + timeout
        done = [each.flush(max(0.0, deadline - time.monotonic())) for each in self._all]
        return all(done)

    def close(self, linger: float = 1.0) -> None:
        """Hang up on all."""
        for each in self._all:
            each.close(linger)

    def _of(self, peer: str) -> Endpoint:
        return next((each for each in self._all if each.has(peer)), self._first)

    def _wait(self, seconds: float | None) -> None:
        """Until some road may have something."""
        if any(each.has_pending() for each in self._all):
            return
        poll = select.poll()
        for each in self._all:
            poll.register(each.fileno(), select.POLLIN)
        poll.poll(None if seconds is None else math.ceil(_MS * seconds))
