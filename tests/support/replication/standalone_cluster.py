"""Hosts of a long-lived cluster for tests: each a station in a thread, on the loopback.

Knows: how stations are stepped and ended, free ports. Does not know: the tests.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from tests.ports import free_ports

from cotswold.host import ForkServer, Token
from cotswold.host.keyring import KeyringFile
from cotswold.replication.controller.settings import ControllerSettings
from cotswold.replication.replica.settings import ReplicationSettings
from cotswold.replication.runtime.drain_progress import DrainProgress
from cotswold.replication.runtime.host_settings import HostSettings
from cotswold.replication.runtime.host_supervisor import HostSupervisor


class Host:
    """One host: its station, its events, and the thread that steps it."""

    def __init__(self, settings: HostSettings, token: Token | KeyringFile, processes: ForkServer) -> None:
        self.events: list[tuple[str, str, str]] = []
        self.drained: DrainProgress | None = None
        self.folder = settings.folder
        self._over, self._drain = threading.Event(), threading.Event()
        self._ready = threading.Event()
        self._settings, self._token, self._processes = settings, token, processes
        self.station: HostSupervisor | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"station {settings.name}")
        self._thread.start()
        self._ready.wait(20)
        assert self._error is None, self._error

    @property
    def processes(self) -> dict[str, int]:
        assert self.station is not None, "it has begun"
        return dict(self.station.processes)

    def told(self, kind: str) -> list[str]:
        return [sentence for each, _, sentence in self.events if each == kind]

    def drain(self) -> None:
        self._drain.set()

    def close(self) -> None:
        self._over.set()
        self._thread.join(40)
        assert not self._thread.is_alive(), "it ends"
        assert self._error is None, self._error

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            self._error = error
            self._ready.set()

    def _serve(self) -> None:
        def hear(kind: str, name: str, sentence: str) -> None:
            self.events.append((kind, name, sentence))

        with HostSupervisor(self._settings, self._token, hear, self._processes) as self.station:
            self._ready.set()
            while not self._over.is_set():
                self.station.step(0.05)
                if self._drain.is_set():
                    self._drain.clear()
                    self.drained = self.station.drain(15.0)


def until(is_so: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it does not come to that"
        time.sleep(0.05)


def settings_of(
    folder: Path, port: int, *, servers: int = 3, name: str = "a", copies: int = 2
) -> HostSettings:
    return HostSettings(
        at="127.0.0.1",
        controllers=(f"127.0.0.1:{port}",),
        servers=servers,
        folder=folder,
        name=name,
        control=ControllerSettings(replication_factor=copies),
        copying=ReplicationSettings(),
        flush_seconds=0.4,
    )


@contextmanager
def standing(
    folder: Path,
    processes: ForkServer,
    token: Token | KeyringFile,
    hosts: int = 1,
    servers: int = 3,
    copies: int = 2,
) -> Iterator[tuple[list[Host], str]]:
    """Yield a cluster of some hosts, and the address of its controller."""
    with free_ports(1) as (port,), ExitStack() as held:
        found: list[Host] = []
        for number in range(hosts):
            name = "abcdef"[number]
            settings = settings_of(folder / name, port, servers=servers, name=name, copies=copies)
            settings = replace(settings, has_controller=number == 0)
            found.append(Host(settings, token, processes))
            held.callback(found[-1].close)
        until(lambda: len(found[0].told("joined")) == hosts * servers)
        yield found, f"127.0.0.1:{port}"
