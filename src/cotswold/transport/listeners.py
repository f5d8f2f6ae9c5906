"""The listeners of an endpoint: a Unix socket, and with *curve* a TCP port for each token.

Knows: listeners, ports, the token of each. Does not know: callers, messages.

    the first token changes             effect
    callers authenticate by *hmac*      none: any token of the ring is accepted
    by *curve*, with several ports      a listener with the new keys opens at another port; the listener of a
      or any port                         token that left the ring closes
    by *curve*, with one port           the listener closes, and one with the new keys opens at the same port:
                                          callers with the old token are refused, and try the next
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import zmq

from cotswold.errors import MachineError
from cotswold.transport.address import Mode
from cotswold.transport.authentication import Keys, KeySet
from cotswold.transport.listener import AddressInUseError, Caller, EndpointListener

_CLOSING_SECONDS = 2.0
"""Seconds that ZeroMQ may take to release a port."""
_POLL_SECONDS = 0.002


class PortsInUseError(MachineError):
    """Other processes listen at all of the given ports."""


class Listeners:
    """The listeners of the endpoint called ``name``; must be closed.

    ``on_open`` and ``on_close`` are called with each listener. Without ``host`` there is no TCP port.
    ``ports`` are the ports to choose a free one from; empty for any port.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        name: str,
        unix: str,
        host: str | None,
        ports: Sequence[int],
        mode: Mode,
        on_open: Callable[[EndpointListener], None],
        on_close: Callable[[EndpointListener], None],
    ) -> None:
        self.unix, self._mode = unix, mode
        self.tcp: str | None = None
        """``tcp://host:port`` for the first token."""
        self.listeners: list[EndpointListener] = []
        self._context, self._name, self._host, self._ports = context, name, host, tuple(ports)
        self._on_open, self._on_close = on_open, on_close

    def open(self, ring: KeySet) -> None:
        """Listen. Raises PortsInUseError if other processes listen at all ports, MachineError if this
        machine does not have the address."""
        self._listen(self.unix, ring.first, "hmac")
        if self._host is not None:
            self.tcp = self._listen_at(self._host, ring.first)

    @property
    def callers(self) -> list[Caller]:
        """The processes at the other ends of incoming connections."""
        return [each for listener in self.listeners for each in listener.callers.values()]

    def has_called(self, name: str) -> bool:
        """True if a peer has a connection to this endpoint."""
        return any(each.name == name for each in self.callers)

    def forget(self, name: str) -> list[tuple[EndpointListener, bytes]]:
        """Stop reading a peer's incoming connections, and return these connections."""
        found = [
            (listener, number)
            for listener in self.listeners
            for number, caller in listener.callers.items()
            if caller.name == name
        ]
        for listener, number in found:
            del listener.callers[number]
        return found

    def has_keys(self, ring: KeySet) -> bool:
        """True if callers with the first token are accepted, and no callers with a token that is not in
        use."""
        known = {each.fingerprint for each in self.listeners if each.fingerprint}
        if self._mode == "hmac" or self._host is None:
            return True
        return ring.first.fingerprint in known <= {each.fingerprint for each in ring.keys}

    def rotate(self, ring: KeySet) -> None:
        """Listen with another ring; raises as `open` does, and may be repeated then."""
        if self.has_keys(ring):
            return
        assert self._host is not None, "only TCP ports have keys"
        first = next((each for each in self.listeners if each.fingerprint == ring.first.fingerprint), None)
        if first is None and len(self._ports) == 1:
            self._close([each for each in self.listeners if each.fingerprint])
            self.tcp = self._relisten(self._host, ring.first)
        else:  # open first: callers find the new port before the old one closes
            self.tcp = self._listen_at(self._host, ring.first) if first is None else first.where
        self._close(
            [each for each in self.listeners if each.fingerprint and not ring.named(each.fingerprint)]
        )

    def close(self) -> None:
        """Close all connections."""
        for each in self.listeners:
            each.close()
        self.listeners.clear()

    def _close(self, listeners: Sequence[EndpointListener]) -> None:
        for each in listeners:
            self._on_close(each)
            self.listeners.remove(each)
            each.close()

    def _listen(self, endpoint: str, keys: Keys, mode: Mode) -> str:
        """Listen at an address; return the actual address."""
        listener = EndpointListener(self._context, keys, self._name, endpoint, mode)
        self.listeners.append(listener)
        self._on_open(listener)
        return listener.where

    def _relisten(self, host: str, keys: Keys) -> str:
        """Listen at the port that was just closed."""
        deadline = time.monotonic() + _CLOSING_SECONDS
        while True:
            try:
                return self._listen_at(host, keys)
            except PortsInUseError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_SECONDS)

    def _listen_at(self, host: str, keys: Keys) -> str:
        """Listen at a free one of the ports, or at any port; return the actual address."""
        shown, ports = f"[{host}]" if ":" in host else host, self._ports
        for port in ports or ("*",):
            try:
                return self._listen(f"tcp://{shown}:{port}", keys, self._mode)
            except AddressInUseError:
                continue
        if len(ports) == 1:
            raise PortsInUseError(
                f"the endpoint {self._name} cannot listen at {host}: its only port, {ports[0]}, is taken; "
                "give one port per process of a machine, and some spare ones"
            )
        raise PortsInUseError(
            f"the endpoint {self._name} cannot listen at {host}: all of its {len(ports)} ports, {ports[0]} "
            f"to {ports[-1]}, are taken; give one port per process of a machine, and some spare ones"
        )
