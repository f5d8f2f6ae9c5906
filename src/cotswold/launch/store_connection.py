"""Connections to the store through which ranks find each other: by an address, or by a store that is there.

Knows: torch's stores, who keeps one, sockets. Does not know: what is written in them, beats.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from torch.distributed import (  # type: ignore[attr-defined]  # in its documentation, not in its __all__
    DistNetworkError,
    Store,
    TCPStore,
)

from cotswold.errors import RankError
from cotswold.host.network import address_of_keeper, listener_at
from cotswold.launch.join_timeout import Waiting
from cotswold.launch.world import INTERFACE, World

_CALL = timedelta(seconds=10)
"""The most that one call of the store takes while its keeper lives."""


class Connections(Protocol):
    """Opens connections: calls on one wait for each other, so a rank's heartbeat has one of its own."""

    def first(self) -> Store:
        """The first connection; RankError if the store cannot be reached in time."""

    def another(self) -> Store:
        """One more, once there is a first."""


@dataclass
class ByAddress:
    """The TCPStore at the world's address; rank 0 keeps it unless the launcher does."""

    world: World
    waiting: Waiting
    _address: str = ""
    """Where the first connection has led."""

    def first(self) -> TCPStore:
        """The store itself in the process that keeps it."""
        if self.world.rank == 0 and not self.world.hosted:
            tcp = self._keep()
        else:
            self._reach()
            # rank 0 may have inherited a socket that listens, and import torch before it answers
            seconds = max(self.waiting.deadline - time.monotonic(), self.waiting.timeout_seconds)
            tcp = self._connect(self._address_of_keeper(), seconds)
        self._address = tcp.host
        return tcp

    def another(self) -> TCPStore:
        """By the address to which the first has led."""
        return self._connect(self._address, self.waiting.timeout_seconds)

    def _connect(self, address: str, seconds: float) -> TCPStore:
        timeout = timedelta(seconds=seconds)
        tcp = self.waiting.within(
            lambda: TCPStore(address, self.world.port, wait_for_workers=False, timeout=timeout), seconds
        )
        tcp.set_timeout(_CALL)
        return tcp

    def _address_of_keeper(self) -> str:
        several = self.world.local_size < self.world.size
        return address_of_keeper(self.world.host, several_hosts=several, interface=_chosen_interface())

    def _keep(self) -> TCPStore:
        world = self.world
        try:
            listener = world.listener
            if listener is None:
                address = self._address_of_keeper()
                listener = listener_at(address, world.port, interface=_chosen_interface()).detach()
            with socket.socket(fileno=os.dup(listener)) as same:
                address = same.getsockname()[0]
            return TCPStore(
                address,
                world.port,
                is_master=True,
                wait_for_workers=False,
                timeout=_CALL,
                master_listen_fd=listener,  # torch would listen on all interfaces; it closes this one
            )
        except (DistNetworkError, OSError) as error:
            said = " ".join((getattr(error, "strerror", None) or str(error)).split())[:200]
            if getattr(error, "errno", None) == errno.EADDRINUSE:
                said = "the port is taken"
            raise RankError(
                f"{self.waiting.me} cannot keep the ranks' store at {world.master} ({said}); choose another "
                "port with MASTER_PORT, or an address of this host with MASTER_ADDR"
            ) from error

    def _reach(self) -> None:
        """Knock until somebody listens: in Python, where signals are heard and nothing is logged."""
        while True:
            try:
                seconds = min(max(self.waiting.deadline - time.monotonic(), 0.1), 5.0)
                socket.create_connection((self._address_of_keeper(), self.world.port), seconds).close()
                return
            except (OSError, UnicodeError) as error:  # the latter for what cannot be a name
                self.waiting.again(f"which cannot be reached ({getattr(error, 'strerror', None) or error})")


@dataclass(frozen=True)
class ByStore:
    """A store of torch that others have made and keep; its own connection and timeout stay as they are."""

    store: Store
    waiting: Waiting

    def first(self) -> Store:
        """A connection of our own to the same store."""
        return self.another()

    def another(self) -> Store:
        """One more."""
        connection: Store = self.waiting.within(self.store.clone)  # type: ignore[attr-defined]  # torch has no type for it
        connection.set_timeout(_CALL)
        return connection


def connections_to(door: World | Store, waiting: Waiting) -> Connections:
    """To the store at a world's address, or to one that is given."""
    return ByAddress(door, waiting) if isinstance(door, World) else ByStore(door, waiting)


def _chosen_interface() -> str:
    """The network interface that the user has chosen for Gloo; "" without one."""
    return os.environ.get(INTERFACE, "").partition(",")[0]
