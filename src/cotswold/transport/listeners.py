"""Where an endpoint listens: a Unix socket, and a TCP port for each token where these have keys of their own.

Knows: listeners, ports, which token each has. Does not know: callers, messages.

    the first token is another          what happens
    callers prove it by *hmac*          nothing: any token of the ring opens the door
    by *curve*, at one of several       a listener with its keys at another port; that of a token that is
      ports, or at any                    not in the ring any more closes
    by *curve*, at one port             the listener closes, and one with its keys opens at that port: whoever
                                          calls with the token before is refused, and calls with the next
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import zmq

from cotswold.errors import MachineError
from cotswold.transport.address import Mode
from cotswold.transport.authentication import Keys, Ring
from cotswold.transport.listener import Caller, Listener, TakenError

_CLOSING_SECONDS = 2.0
"""In which ZeroMQ gives a port back."""
_LOOK_SECONDS = 0.002


class PortsTakenError(MachineError):
    """Others listen at all the ports that were given."""


class Doors:
    """Those of the endpoint called ``name``; ``opened`` and ``closing`` hear of each listener.

    Without ``host`` there is no port; ``ports`` are those of which it takes one that is free, any without.
    To be closed.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        name: str,
        unix: str,
        host: str | None,
        ports: Sequence[int],
        mode: Mode,
        opened: Callable[[Listener], None],
        closing: Callable[[Listener], None],
    ) -> None:
        self.unix, self._mode = unix, mode
        self.tcp: str | None = None
        """``tcp://host:port`` for the first token."""
        self.listeners: list[Listener] = []
        self._context, self._name, self._host, self._ports = context, name, host, tuple(ports)
        self._opened, self._closing = opened, closing

    def open(self, ring: Ring) -> None:
        """Listen; raises PortsTakenError where others listen at all ports, MachineError for an address that
        this machine does not have."""
        self._listen(self.unix, ring.first, "hmac")
        if self._host is not None:
            self.tcp = self._listen_at(self._host, ring.first)

    @property
    def callers(self) -> list[Caller]:
        """Who is at the other ends of connections to here."""
        return [each for listener in self.listeners for each in listener.callers.values()]

    def has_called(self, name: str) -> bool:
        """Whether a peer has a connection to here."""
        return any(each.name == name for each in self.callers)

    def forget(self, name: str) -> list[tuple[Listener, bytes]]:
        """What comes by connections of a peer to here is not read any more; these connections."""
        found = [
            (listener, number)
            for listener in self.listeners
            for number, caller in listener.callers.items()
            if caller.name == name
        ]
        for listener, number in found:
            del listener.callers[number]
        return found

    def is_at(self, ring: Ring) -> bool:
        """Whether a caller with the first token can come in, and none with a token that is not in use."""
        known = {each.fingerprint for each in self.listeners if each.fingerprint}
        if self._mode == "hmac" or self._host is None:
            return True
        return ring.first.fingerprint in known <= {each.fingerprint for each in ring.keys}

    def rotate(self, ring: Ring) -> None:
        """Listen by another ring; raises as `open` does, and may be called again then."""
        if self.is_at(ring):
            return
        assert self._host is not None, "only ports have keys"
        first = next((each for each in self.listeners if each.fingerprint == ring.first.fingerprint), None)
        if first is None and len(self._ports) == 1:
            self._close([each for each in self.listeners if each.fingerprint])
            self.tcp = self._listen_again(self._host, ring.first)
        else:  # first it opens: whoever looks for the new one finds it before the old one is gone
            self.tcp = self._listen_at(self._host, ring.first) if first is None else first.where
        self._close(
            [each for each in self.listeners if each.fingerprint and not ring.named(each.fingerprint)]
        )

    def close(self) -> None:
        """Hang up on all."""
        for each in self.listeners:
            each.close()
        self.listeners.clear()

    def _close(self, listeners: Sequence[Listener]) -> None:
        for each in listeners:
            self._closing(each)
            self.listeners.remove(each)
            each.close()

    def _listen(self, where: str, keys: Keys, mode: Mode) -> str:
        """Listen at an address; what it became."""
        listener = Listener(self._context, keys, self._name, where, mode)
        self.listeners.append(listener)
        self._opened(listener)
        return listener.where

    def _listen_again(self, host: str, keys: Keys) -> str:
        """At the port that was just closed."""
        deadline = time.monotonic() + _CLOSING_SECONDS
        while True:
            try:
                return self._listen_at(host, keys)
            except PortsTakenError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_LOOK_SECONDS)

    def _listen_at(self, host: str, keys: Keys) -> str:
        """Listen at one of the ports that is free, or at any; what it became."""
        shown, ports = f"[{host}]" if ":" in host else host, self._ports
        for port in ports or ("*",):
            try:
                return self._listen(f"tcp://{shown}:{port}", keys, self._mode)
            except TakenError:
                continue
        if len(ports) == 1:
            raise PortsTakenError(
                f"the endpoint {self._name} cannot listen at {host}: its only port, {ports[0]}, is taken; "
                "give a port to each process of a machine, and some more"
            )
        raise PortsTakenError(
            f"the endpoint {self._name} cannot listen at {host}: all of its {len(ports)} ports, {ports[0]} "
            f"to {ports[-1]}, are taken; give a port to each process of a machine, and some more"
        )
