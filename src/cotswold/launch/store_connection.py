"""Open connections to the store through which ranks find each other: by address, or from an existing store.

Knows: torch's stores, which process hosts one, sockets. Does not know: the store's contents, beats.
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
from cotswold.host.network import listener_at, server_address
from cotswold.launch.startup import StartupDeadline
from cotswold.launch.world import INTERFACE, World

_CALL_TIMEOUT = timedelta(seconds=10)
"""Timeout of one call while the process that hosts the store is alive."""


class Connections(Protocol):
    """Opens connections to one store.

    Calls on one connection wait for each other, so a rank's heartbeat needs a connection for itself.
    """

    def open_first(self) -> Store:
        """Open the first connection; RankError if the store cannot be reached in time."""

    def open_another(self) -> Store:
        """Open a further connection after the first."""


@dataclass
class AddressConnections:
    """Connections to the TCPStore at the world's address; rank 0 hosts it unless the launcher does."""

    world: World
    startup: StartupDeadline
    _address: str = ""
    """Address that the first connection reached."""

    def open_first(self) -> TCPStore:
        """Create the store if this process hosts it, otherwise connect to it."""
        if self.world.rank == 0 and not self.world.hosted:
            tcp = self._host_store()
        else:
            self._wait_for_port()
            # Rank 0 may have inherited the listening socket, and imports torch before it answers.
            seconds = max(self.startup.deadline - time.monotonic(), self.startup.timeout_seconds)
            tcp = self._connect(self._store_address(), seconds)
        self._address = tcp.host
        return tcp

    def open_another(self) -> TCPStore:
        """Connect to the address that the first connection reached."""
        return self._connect(self._address, self.startup.timeout_seconds)

    def _connect(self, address: str, seconds: float) -> TCPStore:
        timeout = timedelta(seconds=seconds)
        tcp = self.startup.call_with_timeout(
            lambda: TCPStore(address, self.world.port, wait_for_workers=False, timeout=timeout), seconds
        )
        tcp.set_timeout(_CALL_TIMEOUT)
        return tcp

    def _store_address(self) -> str:
        several = self.world.local_size < self.world.size
        return server_address(self.world.host, several_hosts=several, interface=_user_interface())

    def _host_store(self) -> TCPStore:
        world = self.world
        try:
            listener = world.listener
            if listener is None:
                address = self._store_address()
                listener = listener_at(address, world.port, interface=_user_interface()).detach()
            with socket.socket(fileno=os.dup(listener)) as same:
                address = same.getsockname()[0]
            return TCPStore(
                address,
                world.port,
                is_master=True,
                wait_for_workers=False,
                timeout=_CALL_TIMEOUT,
                master_listen_fd=listener,  # torch would listen on all interfaces; it closes this descriptor
            )
        except (DistNetworkError, OSError) as error:
            said = " ".join((getattr(error, "strerror", None) or str(error)).split())[:200]
            if getattr(error, "errno", None) == errno.EADDRINUSE:
                said = "the port is taken"
            raise RankError(
                f"{self.startup.own_name} cannot host the ranks' store at {world.master} ({said}); "
                "choose another port with MASTER_PORT, or an address of this host with MASTER_ADDR"
            ) from error

    def _wait_for_port(self) -> None:
        """Retry until the port accepts a connection; in Python, which handles signals and logs nothing."""
        while True:
            try:
                seconds = min(max(self.startup.deadline - time.monotonic(), 0.1), 5.0)
                socket.create_connection((self._store_address(), self.world.port), seconds).close()
                return
            except (OSError, UnicodeError) as error:  # UnicodeError: the text cannot be a host name
                self.startup.pause_before_retry(
                    f"which cannot be reached ({getattr(error, 'strerror', None) or error})"
                )


@dataclass(frozen=True)
class StoreConnections:
    """Connections to an existing torch store; its own connection and timeout stay unchanged."""

    store: Store
    startup: StartupDeadline

    def open_first(self) -> Store:
        """Open a separate connection to the same store."""
        return self.open_another()

    def open_another(self) -> Store:
        """Open a further connection to the same store."""
        connection: Store = self.startup.call_with_timeout(self.store.clone)  # type: ignore[attr-defined]  # torch has no type for it
        connection.set_timeout(_CALL_TIMEOUT)
        return connection


def connections_to(store_source: World | Store, startup: StartupDeadline) -> Connections:
    """Return connections to the store at a world's address, or to a given store."""
    return (
        AddressConnections(store_source, startup)
        if isinstance(store_source, World)
        else StoreConnections(store_source, startup)
    )


def _user_interface() -> str:
    """Network interface that the user chose for Gloo; "" without one."""
    return os.environ.get(INTERFACE, "").partition(",")[0]
