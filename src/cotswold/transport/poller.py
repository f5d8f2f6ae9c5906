"""Which sockets of ZeroMQ's may have something: waiting for many of them, without missing any.

Knows: descriptors, and what is to be done when one can be read. Does not know: sockets, messages.

ZeroMQ's descriptor of a socket tells of a change once: whatever is done with the socket, also sending, may
take the change in. So a socket that was used is *doubtful*: before its descriptor is waited for, the socket
must have said anew that it has nothing.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable

Act = Callable[[], None]


class Readiness:
    """Of the sockets and other descriptors of one endpoint; to be closed."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        """Has the descriptors: with what is to be done when one is ready."""
        self._doubtful: set[int] = set()

    @property
    def is_doubtful(self) -> bool:
        """Whether there are sockets that may have something of which their descriptors do not tell."""
        return bool(self._doubtful)

    def fileno(self) -> int:
        """A descriptor that can be read when one of these can be; it tells of no doubtful socket."""
        return self._selector.fileno()

    def add_socket(self, descriptor: int, act: Act) -> None:
        """From now on do this when a socket of ZeroMQ's may have something."""
        self._selector.register(descriptor, selectors.EVENT_READ, act)
        self._doubtful.add(descriptor)

    def add(self, descriptor: int, act: Act) -> None:
        """From now on do this when a descriptor can be read."""
        self._selector.register(descriptor, selectors.EVENT_READ, act)

    def remove(self, descriptor: int) -> None:
        """The opposite of both."""
        self._selector.unregister(descriptor)

    def doubt(self, descriptor: int) -> None:
        """The socket was used."""
        self._doubtful.add(descriptor)

    def attend(self) -> None:
        """Look at sockets that were used since they said that they have nothing."""
        doubtful, self._doubtful = self._doubtful, set()
        known = self._selector.get_map()
        for descriptor in doubtful:
            if descriptor in known:
                known[descriptor].data()

    def wait(self, seconds: float | None) -> None:
        """Until a descriptor is ready, or a socket is doubtful; what is ready is done."""
        if self._doubtful:
            seconds = 0.0
        for key, _ in self._selector.select(None if seconds is None else max(0.0, seconds)):
            key.data()

    def close(self) -> None:
        """Wait for nothing any more."""
        self._selector.close()
