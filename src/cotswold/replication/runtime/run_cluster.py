"""Replica servers and a controller as processes of one run.

Knows: which processes run, their addresses, when to restart each, where to report. Does not know: buckets
(`replication.controller`), training.

A server that exits is replaced by one with another name (`replica.saved_bucket`), which has only its disk, if
there are disks. The controller is told at once and gives it replicas. The controller itself is restarted
under its own name: its metadata are on the disk. A process that exits repeatedly, or cannot be started, is
restarted with backoff (`restart_backoff`): meanwhile the other servers have replicas.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from cotswold.errors import CotswoldError
from cotswold.host import Call
from cotswold.processes.process_group import ProcessGroup
from cotswold.processes.restart_backoff import RestartBackoff
from cotswold.replication.client.routed_messenger import RoutedMessenger
from cotswold.replication.controller.settings import ControllerSettings
from cotswold.replication.metadata import MetadataLocation
from cotswold.replication.replica.saved_bucket import disk_of, next_server_name
from cotswold.replication.run_settings import ReplicatedClusterSettings
from cotswold.wire import CONTROLLERS, Create, ServerExited
from cotswold.wire.lifecycle import ControllerAddresses, CountersRequest, ServerReady

CONTROLLER = "controller-0"
DISKS_FOLDER = "servers"
"""Folder of a run with its servers' disks, until the run ends."""
CallFactory = Callable[[str, str, Mapping[str, object]], Call]
"""Makes a call from a name, a role and arguments."""


class RunCluster:
    """Server processes and the controller of one run."""

    def __init__(
        self,
        settings: ReplicatedClusterSettings,
        process_group: ProcessGroup,
        messenger: RoutedMessenger,
        call: CallFactory,
        held: ExitStack,
    ) -> None:
        """``held``: closed at the end of the run."""
        self._settings, self._process_group, self.messenger, self._call = (
            settings,
            process_group,
            messenger,
            call,
        )
        self._folder = Path(held.enter_context(TemporaryDirectory(prefix="cotswold-controller-")))
        self._addresses: dict[str, str] = {}
        self._number = 0
        self._backoffs: dict[str, RestartBackoff] = {}
        """Backoff by the name of the disk, or of the controller."""
        self._restarting: dict[str, str] = {}
        """Name of the next process for each of these that is not running."""
        if settings.disks is not None:  # of a run that was killed: the metadata that belong to them are lost
            shutil.rmtree(settings.disks, ignore_errors=True)
            held.callback(shutil.rmtree, settings.disks, ignore_errors=True)

    @property
    def servers(self) -> list[str]:
        """Names of the running servers."""
        return [
            name for name in self._addresses if name != CONTROLLER and self._process_group.is_watched(name)
        ]

    @property
    def counters_request(self) -> CountersRequest:
        """The request for their metrics."""
        return CountersRequest()

    @property
    def controllers(self) -> dict[str, str]:
        """Addresses of controllers by name; empty for one that has not reported it."""
        return {CONTROLLER: self._addresses.get(CONTROLLER, "")}

    @property
    def has_controller(self) -> bool:
        """True if the controller has reported its address."""
        return CONTROLLER in self._addresses

    unknown = ""
    """Always empty: the run's own controller knows the run."""

    def silence_text(self, now: float) -> str:
        """Return an empty text: the controller is a process that is restarted."""
        return ""

    def is_server(self, name: str) -> bool:
        """True if a process of this name is, or was, one of these."""
        return name == CONTROLLER or name.startswith("server-")

    def start_controller(self, now: float) -> None:
        """Start the controller, before all servers."""
        self._begin(CONTROLLER, now)

    def start_server(self, now: float) -> None:
        """Start one more server, after the controller."""
        self._number += 1
        self._begin(f"server-{self._number - 1}", now)

    def restart_due(self, now: float) -> list[tuple[str, str]]:
        """Restart the processes that are due; return those that failed to start, with a sentence."""
        failed = []
        for life, name in list(self._restarting.items()):
            if not self._backoffs[life].is_restart_due(now):
                continue
            try:
                self._start(name)
            except CotswoldError as error:
                failed.append((name, f"{name} cannot be started: {error}"))
                self._backoffs[life].failed(now)
            else:
                del self._restarting[life]
                self._backoffs[life].record_start(now)
        return failed

    def _begin(self, name: str, now: float) -> None:
        self._start(name)
        self._backoffs[disk_of(name)] = RestartBackoff(now)

    def _start(self, name: str) -> None:
        if name == CONTROLLER:
            self._start_controller()
        else:
            self._start_server(name)

    def _start_controller(self) -> None:
        state = MetadataLocation(sqlite=str(self._folder / "state.sqlite"))
        settings = self._settings
        control = ControllerSettings(
            replication_factor=settings.replication_factor,
            replication_factor_min=settings.copying.min_members,
        )
        told = {"state": asdict(state), "control": asdict(control)}
        self._process_group.start(self._call(CONTROLLER, "controller", told))

    def _start_server(self, name: str) -> None:
        settings = self._settings
        told: dict[str, object] = {
            "key": secrets.token_hex(16),
            "controllers": self.controllers,
            "copying": asdict(settings.copying),
        }
        if settings.disks is not None:
            disk = Path(settings.disks).absolute() / disk_of(name)
            told |= {"disk": str(disk), "flush_seconds": settings.flush_seconds}
        self._process_group.start(
            self._call(name, "keeper", {**told, "host": "here"}), spread=settings.spread_servers
        )

    def on_ready(self, ready: ServerReady, clients: Iterable[str]) -> None:
        """Record that a process serves; ``clients``: processes that need the controller's address."""
        self._addresses[ready.name] = ready.address
        if ready.name == CONTROLLER:
            self.messenger.find(self.controllers)
            for name in clients:
                self.send_addresses(name)
        else:  # the controller may have been restarted before this server could receive its address
            self.send_addresses(ready.name)

    def send_addresses(self, client: str) -> None:
        """Send the controllers' addresses to a server or a client."""
        self.messenger.send(client, ControllerAddresses(tuple(self.controllers.items())))

    def on_exit(self, name: str, why: str, now: float, *, is_seen: bool = True) -> None:
        """Replace a process when that is due.

        Controllers are told that a server has exited only if its exit ``is_seen``. A server that is merely
        lost may be alive and act: its lease decides.
        """
        self._addresses.pop(name, None)
        if name != CONTROLLER and is_seen:
            self.messenger.send(CONTROLLERS, ServerExited(name, why))
        life = disk_of(name)
        self._restarting[life] = name if name == CONTROLLER else next_server_name(name)
        self._backoffs[life].record_exit(now)

    def create(self, request: Create) -> None:
        """Have the controller create buckets; repeat it until `RoutedMessenger.unknown` is empty."""
        self.messenger.send(CONTROLLERS, request)
        self.messenger.find_primaries()
