"""Servers that keep copies of a run's buckets, and their controller: as processes of the run.

Knows: which are there, where they are reached, whom to start again, whom to tell. Does not know: who has
which bucket (`replication.controller`), what is trained.

A server whose process ends is replaced by one with another name (`copies.saved`), which has nothing but its
disk, where there are disks; the controller is told at once, and gives it copies. The controller is started
again under its own name: its state is on the disk. Whoever ends at once again and again is started later and
later (`lives`), and so is whoever cannot be started: the others have copies meanwhile.
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
from cotswold.processes.cluster_settings import ClusterSettings
from cotswold.processes.process_group import Staff
from cotswold.processes.restart_backoff import Life
from cotswold.replication.client.routed_messenger import RoutedPost
from cotswold.replication.controller.settings import Control
from cotswold.replication.metadata import Place
from cotswold.replication.replica.saved_bucket import disk_of, next_of
from cotswold.wire import CONTROLLERS, Create, Ended
from cotswold.wire.lifecycle import Controllers, Count, Serving

CONTROLLER = "controller-0"
DISKS = "servers"
"""The folder of a run in which its servers have their disks, until it ends."""
Calling = Callable[[str, str, Mapping[str, object]], Call]
"""What makes a call of a name, a role, and arguments."""


class Keepers:
    """Those of one run."""

    def __init__(
        self,
        settings: ClusterSettings,
        staff: Staff,
        post: RoutedPost,
        call: Calling,
        held: ExitStack,
    ) -> None:
        """``held``: what ends with the run."""
        self._settings, self._staff, self.post, self._call = settings, staff, post, call
        self._folder = Path(held.enter_context(TemporaryDirectory(prefix="cotswold-controller-")))
        self._addresses: dict[str, str] = {}
        self._number = 0
        self._lives: dict[str, Life] = {}
        """By the name of the disk, or the controller's."""
        self._due: dict[str, str] = {}
        """Likewise: what the next is called, of those of which none runs."""
        if settings.disks is not None:  # of a run that was killed: the state that belongs to them is gone
            shutil.rmtree(settings.disks, ignore_errors=True)
            held.callback(shutil.rmtree, settings.disks, ignore_errors=True)

    @property
    def servers(self) -> list[str]:
        """Those that are there, by name."""
        return [name for name in self._addresses if name != CONTROLLER and self._staff.is_watched(name)]

    @property
    def counting(self) -> Count:
        """What they are asked, to say what they have done."""
        return Count()

    @property
    def controllers(self) -> dict[str, str]:
        """Where they are, by name; empty for one that has not said so."""
        return {CONTROLLER: self._addresses.get(CONTROLLER, "")}

    @property
    def has_controller(self) -> bool:
        """Whether it is there, and has said where."""
        return CONTROLLER in self._addresses

    unknown = ""
    """The controller is the run's own, and knows it."""

    def unheard(self, now: float) -> str:
        """The controller is a process that is started again."""
        return ""

    def is_one(self, name: str) -> bool:
        """Whether a process of this name is, or was, one of these."""
        return name == CONTROLLER or name.startswith("server-")

    def start_controller(self, now: float) -> None:
        """Start it, first of all."""
        self._begin(CONTROLLER, now)

    def start_server(self, now: float) -> None:
        """Start one more; the controller is there."""
        self._number += 1
        self._begin(f"server-{self._number - 1}", now)

    def start_due(self, now: float) -> list[tuple[str, str]]:
        """Start again whoever is to be there again; who cannot be started, and a sentence that says so."""
        failed = []
        for life, name in list(self._due.items()):
            if not self._lives[life].is_due(now):
                continue
            try:
                self._start(name)
            except CotswoldError as error:
                failed.append((name, f"{name} cannot be started: {error}"))
                self._lives[life].failed(now)
            else:
                del self._due[life]
                self._lives[life].started(now)
        return failed

    def _begin(self, name: str, now: float) -> None:
        self._start(name)
        self._lives[disk_of(name)] = Life(now)

    def _start(self, name: str) -> None:
        if name == CONTROLLER:
            self._start_controller()
        else:
            self._start_server(name)

    def _start_controller(self) -> None:
        state = Place(sqlite=str(self._folder / "state.sqlite"))
        settings = self._settings
        control = Control(copies=settings.server_copies, least=settings.copying.least)
        told = {"state": asdict(state), "control": asdict(control)}
        self._staff.start(self._call(CONTROLLER, "controller", told))

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
        self._staff.start(
            self._call(name, "keeper", {**told, "host": "here"}), spread=settings.spread_servers
        )

    def heard(self, serving: Serving, clients: Iterable[str]) -> None:
        """One of them is there; ``clients``: who must know where controllers are."""
        self._addresses[serving.name] = serving.address
        if serving.name == CONTROLLER:
            self.post.find(self.controllers)
            for name in clients:
                self.tell(name)
        else:  # the controller may have been started again before this one could hear of it
            self.tell(serving.name)

    def tell(self, client: str) -> None:
        """A server or a client is to know where controllers are."""
        self.post.send(client, Controllers(tuple(self.controllers.items())))

    def ended(self, name: str, why: str, now: float, *, is_seen: bool = True) -> None:
        """Replace a process, which is one of these, when that is due.

        Controllers are told that a server has ended only if its end ``is_seen``. A server that was lost may
        live and act: its lease decides.
        """
        self._addresses.pop(name, None)
        if name != CONTROLLER and is_seen:
            self.post.send(CONTROLLERS, Ended(name, why))
        life = disk_of(name)
        self._due[life] = name if name == CONTROLLER else next_of(name)
        self._lives[life].ended(now)

    def create(self, wanted: Create) -> None:
        """Have the controller make buckets; to be said until `RoutedPost.unknown` has none."""
        self.post.send(CONTROLLERS, wanted)
        self.post.seek()
