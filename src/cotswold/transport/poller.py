"""Polling of many ZeroMQ sockets without missing an event.

Knows: descriptors and their handlers. Does not know: sockets, messages.

The descriptor of a ZeroMQ socket signals a change once, and any use of the socket, even sending, may consume
the signal. So a socket that was used is *doubtful*: before its descriptor is polled again, its handler must
have found it empty.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable

Handler = Callable[[], None]


class Poller:
    """Polls the sockets and other descriptors of one endpoint; must be closed."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        """Descriptors with their handlers."""
        self._unchecked: set[int] = set()

    @property
    def has_unchecked(self) -> bool:
        """True if sockets may have messages that their descriptors do not signal."""
        return bool(self._unchecked)

    def fileno(self) -> int:
        """A descriptor that is readable when one of these is; it does not signal doubtful sockets."""
        return self._selector.fileno()

    def add_socket(self, descriptor: int, act: Handler) -> None:
        """Call ``act`` when a ZeroMQ socket may have a message."""
        self._selector.register(descriptor, selectors.EVENT_READ, act)
        self._unchecked.add(descriptor)

    def add(self, descriptor: int, act: Handler) -> None:
        """Call ``act`` when a descriptor is readable."""
        self._selector.register(descriptor, selectors.EVENT_READ, act)

    def remove(self, descriptor: int) -> None:
        """Stop polling a socket or descriptor."""
        self._selector.unregister(descriptor)

    def recheck(self, descriptor: int) -> None:
        """Mark a socket as used."""
        self._unchecked.add(descriptor)

    def attend(self) -> None:
        """Call the handlers of sockets that were used since they were last found empty."""
        doubtful, self._unchecked = self._unchecked, set()
        known = self._selector.get_map()
        for descriptor in doubtful:
            if descriptor in known:
                known[descriptor].data()

    def wait(self, seconds: float | None) -> None:
        """Wait until a descriptor is ready or a socket is doubtful; call the handlers of ready
        descriptors."""
        if self._unchecked:
            seconds = 0.0
        for key, _ in self._selector.select(None if seconds is None else max(0.0, seconds)):
            key.data()

    def close(self) -> None:
        """Stop polling."""
        self._selector.close()
