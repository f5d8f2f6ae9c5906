"""The supervisor of one host in a cluster of parameter servers that outlives runs.

Knows: the processes of this host, when to restart each, where to report. Does not know: buckets
(`replication.controller`), runs.

    event                                             action
    it starts                                         start a controller, if configured, and the servers with
                                                      known disks
    more servers are configured                       ask the leader which names are taken (`server_names`)
    no leader replies                                 report it (`leader_probe`)
    a server exits                                    report to all controllers at once; start the next server
                                                      with its disk, with backoff
    controllers report that a drain is complete       stop the server and start none with its disk
    the drain was ended                               start the next server with its disk
    the controller exits                              restart it under its name: its metadata are kept
    a request to stop                                 stop all processes; disks and other hosts keep data

It keeps no state. If it is killed, its processes die with it, and the next one starts from the disks.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from types import TracebackType
from typing import Self

from cotswold import wire as m
from cotswold.errors import CotswoldError, MachineError, UserError
from cotswold.files import DirectoryLock
from cotswold.host import Call, ForkServer, Processes, Token
from cotswold.host.keyring import KeyringFile
from cotswold.host.token import VARIABLE
from cotswold.phrases import counted
from cotswold.processes.endpoint_settings import EndpointSettings
from cotswold.processes.process_group import ProcessGroup
from cotswold.processes.programs import PROGRAMS
from cotswold.processes.restart_backoff import RestartBackoff
from cotswold.replication.client.standalone_cluster import (
    PORT,
    addresses_by_name,
    controller_name,
    controllers_at,
)
from cotswold.replication.controller.messages import SUPERVISOR_PREFIX
from cotswold.replication.metadata import MetadataLocation
from cotswold.replication.replica.saved_bucket import disk_of
from cotswold.replication.runtime.drain_progress import DrainProgress
from cotswold.replication.runtime.host_settings import (
    DISKS_FOLDER,
    METADATA_FILE,
    HostSettings,
    recover_metadata,
    refuse_foreign_disks,
    require_metadata,
)
from cotswold.replication.runtime.leader_probe import LeaderProbe
from cotswold.replication.runtime.server_names import ServerNames
from cotswold.transport import Endpoint, Lost, Ready
from cotswold.transport.address import is_port_taken
from cotswold.transport.multi_endpoint import MultiEndpoint
from cotswold.transport.token_rotation import TokenRotation
from cotswold.wire.lifecycle import STOP_SECONDS, EventReport, ServerReady, StopProcess
from cotswold.wire.messenger import Messenger, Received, Reconnector

OnEvent = Callable[[str, str, str], None]
"""Callback for events: kind, name of the process, sentence."""
PRELOADED = ("cotswold.replication.runtime.server_process", "cotswold.replication.runtime.controller_process")
_TICK_SECONDS = 0.1
_END_SECONDS = STOP_SECONDS + 2.0
"""Seconds from the request to stop a process until it is killed."""
_REQUEST_SECONDS = 0.3
_STALL_SECONDS = 3.0
"""Seconds without progress after which a drain is abandoned: no server can take the replicas."""
_REPORT_EXIT_SECONDS = 60.0
"""Seconds for which exits are reported to controllers; later leaders notice the silence."""


class HostSupervisor:
    """Supervisor of this host; use it in a ``with`` statement, or call `close`."""

    def __init__(
        self,
        settings: HostSettings,
        token: Token | KeyringFile,
        on_event: OnEvent = lambda kind, name, sentence: None,
        processes: Processes | None = None,
    ) -> None:
        self._settings, self._token, self._on_event = settings, token, on_event
        self._tokens = TokenRotation(token)
        self._resources = ExitStack()
        with ExitStack() as opened:
            self._logs = settings.folder / "logs"
            self._logs.mkdir(parents=True, exist_ok=True)
            opened.enter_context(DirectoryLock(settings.folder, "cluster host"))
            self._check_port_free()
            own = processes or opened.enter_context(closing(ForkServer(PRELOADED)))
            endpoint_settings = EndpointSettings(
                encrypt=settings.encrypt, ports=settings.ports, at=settings.at
            )
            self._endpoint_settings = endpoint_settings
            here = Endpoint(self._tokens.ring, m.COORDINATOR)
            own_name = f"{SUPERVISOR_PREFIX}{secrets.token_hex(3)}/{settings.prefix.removeprefix('server-')}"
            out = Endpoint(
                *(self._tokens.ring, own_name),
                host=settings.at,
                ports=endpoint_settings.one_of_ports,
                encrypt=settings.encrypt,
            )
            out.accept_only_answers()
            networks = MultiEndpoint({"here": here, "out": out})
            opened.callback(networks.close, 0.2)
            self._messenger, self._local_endpoint, self._outer_endpoint = Messenger(networks), here, out
            self._reconnector = Reconnector(lambda address: out)
            self._controllers = controllers_at(settings.controllers)
            self._process_group = ProcessGroup(own, here, _no_worker, restarts=False)
            opened.callback(self._process_group.close)
            self._backoffs: dict[str, RestartBackoff] = {}
            self._names: dict[str, str] = {}
            """Name of each running process: the disk, or the controller, that it stands for."""
            self._keys: dict[str, str] = {}
            """Secrets of servers that run, or whose exit is still being reported."""
            self._serving: set[str] = set()
            """Names of processes that have begun to serve."""
            self._unreported_exits: dict[str, tuple[str, float]] = {}
            """Exited servers that are still being reported, each with the reason and the time."""
            self._reported_at = 0.0
            if said := recover_metadata(settings):
                self._on_event("metadata", settings.prefix, said)
            is_new = settings.has_metadata and not (settings.folder / METADATA_FILE).exists()
            self._disks = ServerNames(settings.folder, settings.prefix, settings.servers, is_new=is_new)
            refuse_foreign_disks(settings, self._disks)
            self._begin()
            etcd = () if settings.place is None else settings.place.etcd
            self._leader_probe = LeaderProbe(addresses_by_name(settings.controllers), etcd, time.monotonic())
            self._resources = opened.pop_all()

    @property
    def processes(self) -> Mapping[str, int]:
        """Running processes and their process numbers."""
        return {
            name: self._process_group.pid_of(name)
            for name in self._names
            if self._process_group.is_watched(name)
        }

    def step(self, seconds: float = _TICK_SECONDS) -> None:
        """Process events for up to ``seconds``, and do what is due."""
        self._receive_event(seconds)

    def _receive_event(self, seconds: float) -> object:
        """Process one event; return a message that is not handled here."""
        for sentence in self._tokens.tick((self._local_endpoint, self._outer_endpoint), time.monotonic()):
            self._on_event("token_rotation", self._settings.prefix, sentence)
        self._reconnector.connect(self._controllers)
        event = self._messenger.receive(seconds)
        match event:
            case Ready(descriptor):
                self._on_descriptor_ready(descriptor)
            case Received(sender, EventReport(kind, name, sentence)) if sender in self._names:
                self._forward_event(kind, name, sentence)
            case Received(sender, ServerReady(name, _)) if sender == name and name in self._names:
                self._serving.add(name)
                self._on_event("serving", name, f"{name} serves, process {self._process_group.pid_of(name)}")
            case Received(sender, m.NotLeader()) if sender in self._controllers:
                self._leader_probe.on_follower(sender)
            case Lost():
                self._leader_probe.on_lost(event)
            case Received(sender, m.RunDescription("") | m.StatusReply() as answer) if (
                sender in self._controllers
            ):
                self._on_leader_reply(answer)
            case _:
                pass
        self._start_due(time.monotonic())
        self._probe_leader(time.monotonic())
        return event.message if isinstance(event, Received) else None

    def _forward_event(self, kind: str, name: str, sentence: str) -> None:
        """Forward an event of a process; events of a disk do not name their server."""
        self._on_event(kind, name, f"{name}: {sentence}" if kind == "disk" else sentence)

    def drain(self, seconds: float) -> DrainProgress:
        """Have servers of other hosts take over the replicas of this host, while its servers keep running.
        Stop after ``seconds``, or when there is no progress."""
        heard: dict[str, m.DrainStatus | None] = {
            name: None for name, life in self._names.items() if life in self._disks.disks
        }
        deadline, moved, asked = time.monotonic() + seconds, time.monotonic(), float("-inf")
        while (drained := DrainProgress.of(heard)).is_incomplete and (now := time.monotonic()) < deadline:
            if now - moved > _STALL_SECONDS:
                break
            if now - asked > _REQUEST_SECONDS:
                asked = now
                more = [name for name, said in heard.items() if said is None or said.left]
                wanted = [m.Drain(name, deadline - now) for name in more]
                self._messenger.deliver([m.Send(to, each) for each in wanted for to in self._controllers])
            said = self._receive_event(_TICK_SECONDS)
            if not isinstance(said, m.DrainStatus) or said.server not in heard:
                continue
            before, heard[said.server] = heard[said.server], said
            if said != before or said.copying:  # a copy may take long
                moved = time.monotonic()
            if before is None or said.left != before.left:
                self._on_event("draining", said.server, f"{said.server}: {counted(said.left, 'copy')} left")
        return drained

    def close(self) -> None:
        """Stop all processes; servers first finish writing to their disks."""
        told, deadline = set[str](), time.monotonic() + _END_SECONDS
        while (serving := self._serving & self.processes.keys()) and time.monotonic() < deadline:
            told |= {name for name in serving - told if self._messenger.send(name, StopProcess())}
            match self._messenger.receive(0.05):
                case Ready(descriptor):
                    self._process_group.reap(descriptor, time.monotonic())
                case Received(sender, EventReport(kind, name, sentence)) if sender in self._names:
                    self._forward_event(kind, name, sentence)
                case _:
                    pass
        for name in serving:
            self._on_event("killed", name, f"{name} has not stopped for {_END_SECONDS:g} s and is killed")
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- processes of this host ---

    def _check_port_free(self) -> None:
        """Raise UserError if the controller's port is taken, before a server could join the wrong cluster."""
        if self._settings.controller is None:
            return
        host, port = self._settings.controller
        if is_port_taken(host, port):
            raise UserError(
                f"port {port} of {host} is taken, perhaps by the controller of a cluster: add servers to "
                f"it with `cotswold cluster add --controllers {host}:{port}`, or name another port, "
                f"the same on all hosts: --controllers {host}:{port + 2}"
            )

    def _begin(self) -> None:
        now, settings = time.monotonic(), self._settings
        self._begin_servers(self._disks.disks)
        if settings.controller is not None:
            name = controller_name(*settings.controller)
            self._backoffs[name] = RestartBackoff(now)
            self._start(name)

    def _begin_servers(self, disks: Sequence[str]) -> None:
        for disk in disks:
            self._backoffs[disk] = RestartBackoff(time.monotonic())
            if disk not in self._disks.drained:
                self._start(disk)

    def _probe_leader(self, now: float) -> None:
        """Probe the leading controller now and then; report if none replies."""
        if self._leader_probe.should_request(now):
            question = m.StatusRequest() if self._disks.lacking else m.RunDescriptionRequest("")
            self._messenger.deliver([m.Send(to, question) for to in self._controllers])
        if said := self._leader_probe.problem_text(now):
            self._on_event("waiting", self._settings.prefix, said)

    def _on_leader_reply(self, answer: m.RunDescription | m.StatusReply) -> None:
        """Process a reply of the leader; it lists the names that are taken."""
        if said := self._leader_probe.on_reply(time.monotonic()):
            self._on_event("connected", self._settings.prefix, said)
        if isinstance(answer, m.StatusReply) and self._disks.lacking:
            new = self._disks.choose(each.name for each in answer.servers)
            self._on_event("starting", self._settings.prefix, f"starting {', '.join(new)}")
            self._begin_servers(new)
        if isinstance(answer, m.RunDescription):
            self._set_drained(answer.drained)

    def _set_drained(self, servers: Sequence[str]) -> None:
        """Stop servers whose drain is complete, and start those whose drain was ended."""
        before, drained = self._disks.drained, {disk_of(each) for each in servers} & {*self._disks.disks}
        try:
            self._disks.drain(drained)
        except OSError as error:  # a full disk: retry later, and start or stop no server before
            self._on_event(
                "failed", self._settings.prefix, f"cannot record which servers are drained: {error}"
            )
            return
        for disk in sorted(before - drained - {*self._names.values()}):
            self._backoffs[disk].restart_at = time.monotonic()
        for name in [name for name, disk in self._names.items() if disk in drained]:
            self._messenger.send(name, StopProcess())  # repeated with each reply, as a message may be lost
            if disk_of(name) not in before:
                back = f"`cotswold cluster drain {disk_of(name)} --back`"
                said = f"{name} was drained and has no copies: its process ends, until {back} starts another"
                self._on_event("drained", name, said)

    def _start(self, life: str) -> None:
        is_server, name = life in self._disks.disks, life
        try:
            name = self._disks.next_name(life) if is_server else life
            self._process_group.start(self._server(name) if is_server else self._controller(name))
        except (CotswoldError, OSError) as error:  # such as a disk without space for the name
            self._on_event("failed", name, f"{name} cannot be started: {error}")
            self._backoffs[life].failed(time.monotonic())
            return
        self._backoffs[life].record_start(time.monotonic())
        self._names[name] = life

    def _on_descriptor_ready(self, descriptor: int) -> None:
        now = time.monotonic()
        ended = self._process_group.reap(descriptor, now)
        if ended is None:
            return
        life = self._names.pop(ended.name)
        if life not in self._disks.disks and ended.name in self._serving:
            require_metadata(self._settings)
        if life in self._disks.disks:
            self._unreported_exits[ended.name] = ended.why, now
            self._report_exits(now)
        if life not in self._disks.disks and ended.name not in self._serving:
            raise MachineError(
                f"{ended.name} {ended.why}; perhaps another controller listens there: name another port, "
                f"the same on all hosts: --controllers {self._settings.at}:{PORT + 1}"
            )
        if life in self._disks.disks:  # the next one has another name
            self._serving.discard(ended.name)
        self._on_event("exited", ended.name, f"{ended.name} {ended.why}")
        self._backoffs[life].record_exit(now)

    def _start_due(self, now: float) -> None:
        if self._unreported_exits and now - self._reported_at > 1.0:
            self._report_exits(now)
        for life, known in self._backoffs.items():
            if known.is_restart_due(now) and life not in self._disks.drained:
                self._start(life)

    def _report_exits(self, now: float) -> None:
        """Report exits to all controllers, repeatedly, as a connection may lose a message."""
        self._reported_at = now
        self._unreported_exits = {
            name: told
            for name, told in self._unreported_exits.items()
            if now - told[1] < _REPORT_EXIT_SECONDS
        }
        self._keys = {
            name: key for name, key in self._keys.items() if name in {*self._names, *self._unreported_exits}
        }
        ended = [
            m.ServerExited(name, why, self._keys.get(name, ""))
            for name, (why, _) in self._unreported_exits.items()
        ]
        sends = [m.Send(to, each) for each in ended for to in self._controllers]
        self._messenger.deliver(sends)

    # --- arguments of processes ---

    def _controller(self, name: str) -> Call:
        settings = self._settings
        assert settings.controller is not None, "there is one here"
        place = settings.place or MetadataLocation(sqlite=str((settings.folder / METADATA_FILE).absolute()))
        told = {"state": asdict(place), "control": asdict(settings.control), "port": settings.controller[1]}
        return self._call(name, "controller", told)

    def _server(self, name: str) -> Call:
        settings = self._settings
        self._keys[name] = secrets.token_hex(16)
        told: dict[str, object] = {
            "key": self._keys[name],
            "host": settings.name or settings.at,
            "controllers": self._controllers,
            "copying": asdict(settings.copying),
            "networks": dict(settings.networks),
        }
        if settings.flush_seconds is not None:
            disk = (settings.folder / DISKS_FOLDER / disk_of(name)).absolute()
            told |= {"disk": str(disk), "flush_seconds": settings.flush_seconds}
        return self._call(name, "keeper", told)

    def _call(self, name: str, role: str, arguments: Mapping[str, object]) -> Call:
        told: dict[str, object] = {
            "name": name,
            "coordinator": self._local_endpoint.address,
            "endpoint_settings": self._endpoint_settings.as_dict(),
            **arguments,
        }
        log, environ = self._logs / f"{disk_of(name)}.log", {}
        if isinstance(self._token, Token):
            environ[VARIABLE] = self._token.text
        else:
            told["tokens"] = str(self._token.path.absolute())
        return Call(name, PROGRAMS[role], told, environ, log)


def _no_worker(name: str) -> Call:
    raise AssertionError(f"{name}: a host supervisor starts no workers")
